"""The cluster's secret, in a file that only its owner may read.

Whoever has it is a node of the cluster. It is never a setting, an argument or a line in a log:
those say where the file is.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger("sapwood.node")

FILE_NAME = "secret"
SECRET_BYTES = 32


class SecretUnusable(Exception):
    """The secret's file is missing or holds something else; says what to do."""


def read(path: Path) -> bytes:
    """The secret; a warning if others could read it, too."""
    try:
        text = path.read_text(encoding="ascii").strip()
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise SecretUnusable(
            f"there is no secret at {path}: copy the file {FILE_NAME!r} of a node of the cluster, "
            "or say where it is with --secret-file"
        ) from None
    except OSError as error:
        raise SecretUnusable(f"can't read the secret {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        text = ""
    with contextlib.suppress(ValueError):
        secret = bytes.fromhex(text)
        if len(secret) == SECRET_BYTES:
            if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
                logger.warning("others may read the cluster's secret: chmod 600 %s", path)
            return secret
    raise SecretUnusable(
        f"{path} holds no secret of a cluster, which is {2 * SECRET_BYTES} hexadecimal digits"
    )


def write(path: Path, secret: bytes) -> None:
    """Durably and at once, for its owner's eyes only from the first byte on."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(secret.hex() + "\n")
        file.flush()
        os.fsync(descriptor)
    os.replace(temporary, path)
    if os.name == "posix":  # elsewhere a directory can't be synced
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def ensure(path: Path, entropy: Callable[[int], bytes] = os.urandom) -> bytes:
    """The secret at `path`, made if there is none."""
    if not path.exists():
        write(path, entropy(SECRET_BYTES))
    return read(path)
