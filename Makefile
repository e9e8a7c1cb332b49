# Everything runs from a virtual environment in .venv, made from the hashed lock on first use.
# Needs: Python 3.11 or newer, make. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

NODES ?= 3
EDGES ?= 2
PIPELINES ?= archive rollup
KILLS ?= 300
GIB ?= 5
MINUTES ?= 5
SEEDS ?=
TIER ?= 2
SECONDS ?= 120
# Tests wait for timers more than they compute: four at once keep two cores busy.
JOBS ?= 4

.PHONY: help run test lint bench compat kill9 once churn big chaos sim lock system clean

help: ## list the targets
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

run: $(INSTALLED) ## start NODES nodes (3), EDGES edges (2) and PIPELINES (archive rollup) in the foreground, and say how to use them
	@if [ -n "$${JAVA_HOME:-}" ] || command -v java >/dev/null; then pipelines="$(PIPELINES:%=--pipeline %)"; \
	  else pipelines=; echo "without its pipelines ($(PIPELINES)): they need Java 17 or newer, which make system installs where there is apt"; fi; \
	  exec $(BIN)/sapwood up --nodes $(NODES) --edges $(EDGES) $$pipelines

test: $(INSTALLED) system ## lint, types and every test, JOBS (4) at once
	@$(BIN)/sapwood pipeline prepare & preparing=$$!; \
	  $(MAKE) --no-print-directory lint || { kill $$preparing; exit 1; }; \
	  wait $$preparing || echo "tests that start a Spark will take longer"
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

lint: $(INSTALLED) ## style, format, types and the rules of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_house.py

bench: $(INSTALLED) ## compare with the other brokers that can be had here
	$(BIN)/python -m bench

compat: $(INSTALLED) ## kafka-python's own suite against a node and an edge, Kafka's Java clients and tools, Spark's connector
	$(BIN)/python -m compat
	$(BIN)/python -m compat --edge
	@if command -v javac >/dev/null && command -v mvn >/dev/null; then \
	    $(BIN)/python -m compat java && $(BIN)/python -m compat spark; \
	  else echo "the Java part was left out: it needs a JDK and Maven (Debian: default-jdk-headless, maven)"; fi

kill9: $(INSTALLED) ## kill -9 under load, KILLS times (300)
	$(BIN)/python -m tests.faults.kill9 --kills $(KILLS)

once: $(INSTALLED) ## read, process and write in transactions while workers and nodes are killed, SECONDS seconds (120)
	$(BIN)/python -m tests.faults.exactly_once --seconds $(SECONDS)

churn: $(INSTALLED) ## members of groups and nodes come and go for SECONDS seconds (120)
	$(BIN)/python -m tests.faults.churn --seconds $(SECONDS)

big: $(INSTALLED) ## write GIB GiB (5), show memory and the time of a restart after kill -9
	$(BIN)/python -m tests.faults.big --gib $(GIB)

chaos: $(INSTALLED) system ## faults on a real cluster under load, for MINUTES minutes (5)
	$(BIN)/python -m chaos run --minutes $(MINUTES) --audit
	$(BIN)/python -m chaos stress --audit
	$(BIN)/python -m chaos spark-once
	$(BIN)/python -m chaos archive-once

# How many seeds and minutes suit a tier, the simulator knows itself.
sim: MINUTES :=
sim: $(INSTALLED) ## simulate SEEDS seeds of TIER (1: consensus, or RULES=tree; 2: whole nodes; 2), each with MINUTES of faults
	$(BIN)/python -m sim --tier $(TIER) $(if $(RULES),--rules $(RULES)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(MINUTES),--minutes $(MINUTES))

lock: $(INSTALLED) ## resolve pyproject.toml anew into requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra spark --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-header --no-annotate --quiet -o requirements.lock

# What no Python package brings along: for tests a Kafka client, and Java for Spark.
system: ## install what tests and pipelines need besides Python, where there is apt
	@$(call need,kcat,kcat,its tests,kcat)
	@$(call need,java,openjdk-17-jre-headless,those of Spark,openjdk@17)

# $(call need,command,Debian's package,whose tests fail without it,Homebrew's package)
define need
command -v $(1) >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && { apt-get install -y -qq $(2) >/dev/null 2>&1 \
	            || { apt-get update -qq && apt-get install -y -qq $(2); } >/dev/null 2>&1; }; } \
	  || echo "$(1) is missing, so $(3) will fail: install it (Debian, Ubuntu: apt-get install $(2); macOS: brew install $(4))"
endef

clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Sapwood needs Python 3.11 or newer: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@echo "installing what requirements.lock names into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src
	@touch $@
