"""The cluster's secret in its file."""

import logging
from pathlib import Path

import pytest

from sapwood.node import secret
from sapwood.node.secret import SecretUnusable


def test_a_secret_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = secret.ensure(path)
    assert len(made) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret.ensure(path) == made
    assert secret.read(path) == made
    assert [found.name for found in tmp_path.iterdir()] == ["secret"]


def test_two_secrets_differ(tmp_path: Path) -> None:
    assert secret.ensure(tmp_path / "one") != secret.ensure(tmp_path / "two")


def test_a_secret_that_others_may_read_is_a_warning_without_the_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "secret"
    made = secret.ensure(path)
    path.chmod(0o640)
    with caplog.at_level(logging.WARNING):
        assert secret.read(path) == made
    (line,) = caplog.messages
    assert f"chmod 600 {path}" in line
    assert made.hex() not in line


@pytest.mark.parametrize("content", [b"", b"hello", b"ab" * 31, b"zz" * 32, b"\xff" * 64])
def test_a_file_that_holds_something_else_is_refused_without_showing_it(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(SecretUnusable, match="64 hexadecimal digits") as caught:
        secret.read(path)
    assert str(path) in str(caught.value)
    if content.isalnum():
        assert content.decode() not in str(caught.value)


def test_a_missing_secret_says_where_it_may_come_from(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match="--secret-file"):
        secret.read(tmp_path / "secret")


def test_a_secret_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match="Is a directory"):
        secret.read(tmp_path)
