"""`sapwood pipeline`: what Spark does with topics, started, watched and stopped.

Spark itself lives in a process of its own (`driver.py`): nothing here imports it.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from sapwood.cli import CommandFailed
from sapwood.cli.connect import bootstrap_option, client_for, directory_option, find_bootstrap
from sapwood.cli.output import Screen, output_option, print_json, print_table, say
from sapwood.node.local import default_directory
from sapwood.node.lock import holder, is_locked
from sapwood.spark.pipelines import PIPELINES, load
from sapwood.spark.pipelines.state import Request, RunFolder, run_folder, run_folders
from sapwood.spark.pipelines.words import Option, PipelineFailed
from sapwood.spark.planning import MissingTopic, known_topics

OWN_SUFFIXES = (".sql", ".py")
STOP_TIMEOUT_S = 60.0
POLL_S = 0.05
WATCH_S = 1.0


@click.group()
def pipeline() -> None:
    """Run pipelines on Spark, and watch and stop them."""


@pipeline.command("ls")
@output_option
def list_pipelines(output: str) -> None:
    """List the ready-made pipelines."""
    if output == "json":
        print_json([{"name": name, "summary": summary} for name, summary in PIPELINES.items()])
    else:
        print_table(("NAME", "WHAT IT DOES"), list(PIPELINES.items()))


class _Runnable(click.Group):
    """A command for each ready-made pipeline, and for each file of the user's own."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(PIPELINES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in PIPELINES:
            found = load(name)
            return _RunCommand(name, found.summary, found.options, found.failed_status)
        path = Path(name)
        if path.is_dir() or (path.suffix in OWN_SUFFIXES and path.is_file()):
            return _RunCommand(str(path.absolute()), f"Run {name}.", ())
        return None

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(context, args[0]) is None:
            known = ", ".join(PIPELINES)
            raise click.UsageError(
                f"there is no pipeline and no .sql or .py file or folder {args[0]!r}; "
                f"ready-made ones are {known}",
                context,
            )
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Pipelines"):
            formatter.write_dl(list(PIPELINES.items()))


@pipeline.group("run", cls=_Runnable, subcommand_metavar="NAME|FILE|FOLDER [OPTIONS]")
def run() -> None:
    """Run a pipeline on Spark, and show how it goes.

    A ready-made one, a .sql or .py file, or a folder as `sapwood pipeline init` makes it.
    `sapwood pipeline run NAME --help` shows a pipeline's own options. A run goes on where the last
    one of its name ended.
    """


_COMMON: tuple[Callable[[Any], Any], ...] = (
    bootstrap_option,
    directory_option,
    click.option("--name", help="Of the run, which keeps its positions under it.  [default: NAME]"),
    click.option(
        "--once/--continuous",
        default=True,
        show_default=True,
        help="Take what is there and end, or go on until stopped.",
    ),
    click.option("--master", help="Where Spark runs: spark://…, yarn, k8s://….  [default: here]"),
    click.option(
        "--remote", help="Spark Connect for a folder's pipeline: sc://….  [default: here]"
    ),
    click.option("--memory", metavar="SIZE", help="Of Spark's heap, such as 4g."),
    click.option(
        "--checkpoints",
        metavar="URL",
        help="Where all of a Spark cluster can reach it.  [default: in --dir]",
    ),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's."),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress."),
)


class _RunCommand(click.Command):
    """`sapwood pipeline run` of one pipeline: it knows what its arguments ask for."""

    def __init__(
        self, target: str, summary: str, options: Sequence[Option], failed_status: int = 1
    ) -> None:
        parameters = [_click_option(each) for each in options] + _common_options()
        super().__init__(target, help=summary, params=parameters, callback=self._run)
        self._target = target
        self._options = options
        self._failed_status = failed_status

    def request(self, given: dict[str, Any]) -> tuple[RunFolder, Request]:
        return make_request(self._target, self._options, given)

    def _run(self, **given: Any) -> None:
        from sapwood.cli.following import follow

        folder, request = self.request(given)
        try:
            if self._target in PIPELINES:
                self._check_cluster(request)
            status = follow(folder, request, quiet=given["quiet"])
        except CommandFailed as error:
            error.show()
            status = self._failed_status
        sys.exit(status)

    def _check_cluster(self, request: Request) -> None:
        """Who or what isn't there is known at once; Spark would take half a minute to say so."""
        from sapwood.client import KafkaError

        asked = (request.options.get(it.key, "") for it in self._options if it.names_topics)
        names = {name.strip() for listed in asked for name in listed.split(",") if name.strip()}
        try:
            with client_for(request.bootstrap) as client:
                known_topics(client, names, request.bootstrap)
        except KafkaError as error:
            raise CommandFailed(error.message or error.code.name) from error
        except MissingTopic as error:
            raise CommandFailed(str(error)) from error


def _common_options() -> list[click.Parameter]:
    def nothing() -> None:
        """Carries the options that decorators give it."""

    function: Any = nothing
    for option in reversed(_COMMON):
        function = option(function)
    return click.command()(function).params


def standing(directory: Path, asked: Sequence[str]) -> list[RunFolder]:
    """Of `sapwood up --pipeline "NAME OPTIONS"`: the runs, ready to be started."""
    found: dict[Path, tuple[RunFolder, Request]] = {}
    for text in asked:
        parent = click.Context(run, info_name="sapwood pipeline run")
        name, command, rest = run.resolve_command(parent, shlex.split(text) or ["?"])
        if not isinstance(command, _RunCommand):
            raise click.UsageError(f"--pipeline {text!r} names no pipeline")
        arguments = ["--continuous", *rest, "--dir", str(directory)]
        folder, request = command.request(command.make_context(name, arguments, parent).params)
        if folder.path in found:
            raise click.UsageError(f"two pipelines are named {request.name}: give one a --name")
        found[folder.path] = folder, request
    for folder, request in found.values():
        folder.save_request(request)
    return [folder for folder, _ in found.values()]


def _click_option(option: Option) -> click.Option:
    kind: Any = click.Choice(option.choices) if option.choices else option.kind
    if option.kind is Path:
        kind = click.Path(path_type=Path)
    # To click a default of None is a default: what is required would never be missing.
    default = {} if option.default is None else {"default": option.default}
    return click.Option(
        [f"--{option.name}", option.key],
        type=None if option.kind is bool else kind,
        is_flag=option.kind is bool,
        required=option.required,
        show_default=option.default not in (None, False),
        help=option.help,
        metavar=option.metavar,
        **default,
    )


def make_request(
    target: str, options: Sequence[Option], given: dict[str, Any]
) -> tuple[RunFolder, Request]:
    """What is to be run, and the folder of its state."""
    is_folder = target not in PIPELINES and Path(target).is_dir()
    if given["master"] and is_folder:
        raise click.UsageError("a folder runs on Spark Connect: give --remote and not --master")
    if given["remote"] and not is_folder:
        raise click.UsageError("--remote is for folders: give --master")
    directory = (given["directory"] or default_directory()).absolute()
    asked = {each.key: _plain(given[each.key]) for each in options}
    name = given["name"] or Path(target).stem
    settings = dict(_setting(text) for text in given["conf"])
    request = Request(
        name=name,
        pipeline=target,
        bootstrap=find_bootstrap(given["bootstrap"]),
        options={key: value for key, value in asked.items() if value is not None},
        once=given["once"],
        master=given["master"],
        remote=given["remote"],
        memory=given["memory"],
        checkpoints=given["checkpoints"],
        spark=settings,
    )
    try:
        return run_folder(directory, name), request
    except PipelineFailed as error:
        raise click.UsageError(str(error)) from error


def _plain(value: Any) -> Any:
    return str(value.absolute()) if isinstance(value, Path) else value


def _setting(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise click.UsageError(f"--conf {text!r}: write it as KEY=VALUE")
    return key.strip(), value.strip()


@pipeline.command("status")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@bootstrap_option
@directory_option
@click.option("-w", "--watch", is_flag=True, help="Go on showing it until Ctrl-C.")
@output_option
def status(
    names: Sequence[str],
    bootstrap: str | None,
    directory: Path | None,
    watch: bool,
    output: str,
) -> None:
    """Show how runs are going.

    Those of --dir on this machine or, with --bootstrap, all that tell the cluster how they are.
    """
    from sapwood.cli.pipeline_status import drawn, local_runs, plain

    directory = (directory or default_directory()).absolute()
    with ExitStack() as stack:
        client = stack.enter_context(client_for(bootstrap)) if bootstrap else None
        screen = stack.enter_context(Screen(watch and output == "table"))
        while True:
            if client is not None:
                from sapwood.spark.pipelines.published import published

                found = plain(published(client))
            else:
                found = local_runs(directory)
            found = [each for each in found if not names or each["name"] in names]
            if output == "json":
                print_json(found)
            elif found:
                screen.show(drawn(found))
            elif not watch:
                say("Nothing was run so far: sapwood pipeline ls lists what can be")
            if not watch:
                return
            time.sleep(WATCH_S)


@pipeline.command("init")
@click.argument("folder", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Make a folder with a declarative pipeline that runs."""
    from sapwood.spark.pipelines.declarative import make_example

    try:
        make_example(folder)
    except PipelineFailed as error:
        raise CommandFailed(str(error)) from error
    click.echo(
        f"""\
{folder} has a pipeline that turns the topic greetings into tables. Try:
  echo hello | sapwood produce greetings
  sapwood pipeline run {folder}"""
    )


@pipeline.command("prepare")
def prepare() -> None:
    """Take a minute now, and Spark starts in half the time from then on.

    Its classes are written to one file of about 200 MB, from which Java maps them. Do it again
    after an update of Java or Spark: the old file does no harm, and no good.
    """
    from sapwood.cli.preparing import prepare

    click.echo(f"Spark's classes are in {prepare()}")


@pipeline.command("stop")
@click.argument("names", nargs=-1, metavar="NAME…")
@click.option("--all", "is_all", is_flag=True, help="Every one that runs.")
@directory_option
def stop(names: Sequence[str], is_all: bool, directory: Path | None) -> None:
    """Stop runs, and wait until they are gone."""
    if bool(names) == is_all:
        raise click.UsageError("give the names of runs, or --all")
    directory = (directory or default_directory()).absolute()
    found = {folder.name: folder for folder in run_folders(directory)}
    for name in names:
        if name not in found:
            raise CommandFailed(f"nothing of the name {name} was ever run in {directory}")
    running = [folder for name, folder in found.items() if is_all or name in names]
    running = [folder for folder in running if is_locked(folder.lock)]
    for folder in running:
        if (pid := holder(folder.lock)) is not None:
            _terminate(pid)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while late := [folder.name for folder in running if is_locked(folder.lock)]:
        if time.monotonic() > deadline:
            raise CommandFailed(f"still running after {STOP_TIMEOUT_S:.0f} s: {', '.join(late)}")
        time.sleep(POLL_S)
    stopped = ", ".join(folder.name for folder in running)
    click.echo(f"Stopped: {stopped}" if stopped else "Nothing was running.")


def _terminate(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:  # it ended by itself in the meantime
        pass
    except PermissionError as error:
        raise CommandFailed(f"process {pid} belongs to another user") from error
