"""kcat's format strings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.cli.formats import FormatError, json_line, line_format
from sapwood.client.fetcher import ConsumedRecord

RECORD = ConsumedRecord("topic", 3, 42, 1234, b"key", b"\xffvalue", (("h", b"1"), ("i", None)), 0)


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        (r"%t/%p/%o\n", b"topic/3/42\n"),
        ("%k=%s", b"key=\xffvalue"),
        ("%T %h %K %S %%", b"1234 h=1,i=NULL 3 6 %"),
        (r"\t\x00\\n", b"\t\0\\n"),
        ("ö", "ö".encode()),
        ("", b""),
    ],
)
def test_tokens_and_escapes_are_replaced(template: str, printed: bytes) -> None:
    assert line_format(template)(RECORD) == printed


def test_what_is_missing_prints_as_nothing_of_size_minus_one() -> None:
    nothing = RECORD._replace(key=None, value=None, headers=())
    assert line_format("[%k|%s|%K|%S|%h]")(nothing) == b"[||-1|-1|]"


@pytest.mark.parametrize("template", ["%q", "%", "\\", r"\q", r"\xzz", r"\x1"])
def test_what_has_no_meaning_is_refused(template: str) -> None:
    with pytest.raises(FormatError, match="-f: "):
        line_format(template)


@given(st.binary(), st.binary(), st.text())
def test_every_record_is_one_line_of_json(key: bytes, value: bytes, name: str) -> None:
    record = RECORD._replace(key=key, value=value, headers=((name, value),))
    line = json_line(record, 0)
    assert line.count(b"\n") == 1
    assert json.loads(line)["headers"][0] == name
