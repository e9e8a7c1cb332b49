#!/bin/sh
# Run Sapwood's command line from a clone. The virtual environment is made on first use.
#   SAPWOOD_VENV  where it is, else .venv in the clone
#   PYTHON        with which Python it is made, else python3
set -eu

home=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
venv=${SAPWOOD_VENV:-$home/.venv}

# The command is there when the installation is complete, and not before.
if [ ! -x "$venv/bin/sapwood" ]; then
    python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "Sapwood needs Python 3.11 or newer: PYTHON=python3.11 $0" >&2
        exit 1
    fi
    echo "installing Sapwood into $venv" >&2
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$home"
fi

exec "$venv/bin/python" -m sapwood "$@"
