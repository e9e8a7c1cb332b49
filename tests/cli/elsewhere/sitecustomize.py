"""What Windows or macOS lack is missing here, too. Python loads this before anything else."""

import os
import select
import signal
import sys
from typing import Any

MODULES = ("uvloop", "fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "crypt")
FUNCTIONS: dict[Any, tuple[str, ...]] = {
    os: (
        "fork", "forkpty", "register_at_fork", "getuid", "geteuid", "getgid", "setsid", "getpgid",
        "killpg", "pread", "pwrite", "preadv", "pwritev", "fdatasync", "sync", "sendfile",
        "posix_fallocate", "posix_fadvise", "posix_spawn", "sched_getaffinity", "sched_setaffinity",
        "sched_yield", "getloadavg", "memfd_create", "pidfd_open", "eventfd", "mkfifo", "statvfs",
    ),
    select: ("epoll", "poll"),
    signal: (
        "SIGHUP", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM",
        "SIGPIPE", "alarm", "setitimer", "pthread_kill", "pthread_sigmask", "sigwait",
    ),
}  # fmt: skip


def _no_proc(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).startswith(("/proc", "/sys")):
        raise FileNotFoundError(f"{arguments[0]}: there is no such directory elsewhere")


for module in MODULES:
    sys.modules[module] = None  # type: ignore[assignment]
for home, names in FUNCTIONS.items():
    for name in names:
        if hasattr(home, name):
            delattr(home, name)
sys.addaudithook(_no_proc)

from asyncio import unix_events  # noqa: E402 - it looks for what is gone by now

del unix_events._UnixSelectorEventLoop.add_signal_handler
