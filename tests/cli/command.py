"""The command line as people meet it: a process with streams and an exit status."""

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
from typing import IO

from sapwood.client import Client  # noqa: F401 - loaded once here instead of in every fork

COMMAND = [sys.executable, "-c", "from sapwood.cli import main; main()"]


def sapwood(
    *arguments: str, bootstrap: str = "", stdin: bytes = b"", fails: int | None = 0
) -> tuple[str, str]:
    """What it printed on standard output and standard error; `fails` is the expected status.

    None: 0 or 1, whichever.
    """
    environment = {**os.environ, "SAPWOOD_BOOTSTRAP": bootstrap, "NO_COLOR": "1"}
    with (
        tempfile.TemporaryFile() as source,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        source.write(stdin)
        source.seek(0)
        status = _run(arguments, environment, source, out, err)
        out.seek(0)
        err.seek(0)
        printed, complained = out.read().decode(), err.read().decode()
    assert status in ((0, 1) if fails is None else (fails,)), complained
    assert "Traceback" not in complained
    return printed, complained


def said(*arguments: str, bootstrap: str = "", stdin: bytes = b"", fails: int = 1) -> str:
    """The one line with which it failed."""
    out, err = sapwood(*arguments, bootstrap=bootstrap, stdin=stdin, fails=fails)
    assert out == ""
    lines = err.strip().splitlines()
    if fails == 1:
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
    return lines[-1]


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What a person at a terminal is shown."""
    import pty  # not everywhere

    ours, theirs = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=clean | environment
    ):
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # that is how the end of a terminal shows
            while more := os.read(ours, 65536):
                shown += more
    os.close(ours)
    return shown.decode()


def _run(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    source: IO[bytes],
    out: IO[bytes],
    err: IO[bytes],
) -> int:
    if not hasattr(os, "fork"):
        command = [*COMMAND, *arguments]
        return subprocess.run(
            command, env=environment, stdin=source, stdout=out, stderr=err, timeout=60
        ).returncode
    # A fork is the same process to the command, without the start of an interpreter each time.
    child = os.fork()
    if child == 0:
        # Other tests' clients are garbage of the parent: here their threads are missing, and to
        # end such a client crashes the process.
        gc.freeze()
        _be_the_command(arguments, environment, source, out, err)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _be_the_command(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    source: IO[bytes],
    out: IO[bytes],
    err: IO[bytes],
) -> None:
    status = 99
    try:
        for number, stream in enumerate((source, out, err)):
            os.dup2(stream.fileno(), number)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["sapwood", *arguments]
        from sapwood.cli import main

        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
