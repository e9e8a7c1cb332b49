"""The disk that can be filled."""

from pathlib import Path

import pytest

from chaos.disk import MOUNTS, NoSmallDisk, SmallDisk


def test_a_small_disk_that_can_not_be_mounted_says_in_a_line_what_that_needs(
    tmp_path: Path,
) -> None:
    with pytest.raises(NoSmallDisk, match="mounting it needs root or `unshare -rm`") as raised:
        SmallDisk(tmp_path / "disk", size_mib=-1)
    assert "\n" not in str(raised.value)
    assert str(tmp_path) not in MOUNTS.read_text()
