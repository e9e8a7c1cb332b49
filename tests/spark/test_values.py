"""Values as columns: what is understood, what isn't and why, and that neither harms the other."""

import base64
import datetime
import decimal
import http.server
import io
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import fastavro
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import given, settings

from sapwood.spark.staging import BESIDE_FIELDS
from sapwood.spark.tables.schemas import to_bytes
from sapwood.spark.values import Decoder, RegistryFailed, ValueFormat, WrongSchema, make_decoder
from sapwood.spark.values.names import column_of, field_of
from sapwood.spark.values.protobuf import read_message

JSON = ValueFormat("json")


def decoded(
    values: Sequence[bytes | None], wanted: ValueFormat = JSON, decoder: Decoder | None = None
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    decoder = decoder or make_decoder(wanted, BESIDE_FIELDS)
    rows, bad = decoder.decode(pa.array(values, pa.binary()))
    count = len(values) - len(bad)
    if not rows.num_columns:  # nothing was met that could be one
        return [{} for _ in range(count)], dict(bad)
    assert rows.num_rows == count
    return rows.to_pylist(), dict(bad)


def test_fields_become_columns_of_the_widest_type() -> None:
    rows, bad = decoded(
        [
            b'{"a": 1, "b": "2026-01-01", "c": {"d": [1.5]}}',
            None,
            b'{"a": null, "c": {"d": [2], "e": true}, "f": [], "g": {}}',
        ]
    )
    assert not bad
    assert rows == [
        {"a": 1, "b": "2026-01-01", "c": {"d": [1.5], "e": None}},
        {"a": None, "b": None, "c": None},
        {"a": None, "b": None, "c": {"d": [2.0], "e": True}},
    ]


def test_bad_values_have_their_reasons_and_harm_no_other() -> None:
    values = [
        b'{"a": 1}',
        b"hello",
        b'{"a": "x"}',
        b'{"a": 2}{"a": 3}',
        b'{"a": [1, {"b"',
        b"",
        b"[1]",
        b'{"a": 4, "a": 5}',
        b'{"a": 6}',
        b'{"a": tru}',
        b'{"a": "\xff"}',
        b'{"z": ' + b'{"a":' * 50 + b"1" + b"}" * 50 + b"}",
        b'{"": 1}',
        b'{"n": {"a b": 1}}',
        b' {"a": 7}\n ',
    ]
    rows, bad = decoded(values)
    assert [row["a"] for row in rows] == [1, 6, 7]
    assert sorted(bad) == sorted(set(range(15)) - {0, 8, 14})
    assert bad[1].startswith("not JSON")
    assert bad[2] == "a is a string, where it was a long"
    assert "levels deep" in bad[11]
    assert "can't be a column's" in bad[13]


def test_names_of_fields_that_are_no_text_and_objects_without_fields_harm_no_other() -> None:
    rows, bad = decoded([b'{"\xff": 1}', b"{}", b'{"a": 1, "a": 2}', b'{"a": {"\xff": 1}}', b"{}"])
    assert (len(rows), sorted(bad)) == (2, [0, 2, 3])
    rows, bad = decoded([b"{}", b'{"a": 1, "a": 2}', b"{}", b'{"a": 1}', b'{"a": 2, "a": 3}'])
    assert (rows, sorted(bad)) == ([{"a": None}, {"a": None}, {"a": 1}], [1, 4])


def test_brackets_that_are_missing_here_and_too_many_there_shift_no_row() -> None:
    values = [b"{}{}", b'{"a": 1}', b'{"b":', b"{}}", b'{"a": 2}']
    rows, bad = decoded(values)
    assert [row["a"] for row in rows] == [1, 2]
    assert sorted(bad) == [0, 2, 3]


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.dictionaries(
                st.sampled_from("abcdef"),
                st.one_of(
                    st.none(), st.booleans(), st.integers(-5, 5), st.floats(-1, 1), st.text()
                ),
                max_size=3,
            ).map(lambda each: json.dumps(each).encode()),
            st.binary(max_size=8),
        ),
        max_size=12,
    )
)
@settings(max_examples=60, deadline=None)
def test_every_value_is_a_row_of_its_own_content_or_bad(values: list[bytes | None]) -> None:
    decoder = make_decoder(JSON, BESIDE_FIELDS)
    rows, bad = decoded(values, decoder=decoder)
    good = [value for index, value in enumerate(values) if index not in bad]
    for value, row in zip(good, rows, strict=True):
        fields = {} if value is None else json.loads(value)
        for name, content in fields.items():
            if content is not None:
                assert row[name] == content


def test_a_column_of_the_table_keeps_its_type_and_new_ones_are_widened() -> None:
    stored = BESIDE_FIELDS.append(pa.field("price", pa.int64()))
    decoder = make_decoder(JSON, stored)
    rows, bad = decoded([b'{"price": 1, "size": 1}', b'{"size": 1.5}'], decoder=decoder)
    assert (rows[0], bad) == ({"price": 1, "size": 1.0}, {})
    rows, bad = decoded([b'{"price": 1.5}', b'{"price": 2}', b'{"size": 3}'], decoder=decoder)
    assert bad == {0: "price is a double, where it was a long"}
    assert [row["size"] for row in rows] == [None, 3.0]


def test_a_given_schema_says_which_fields_and_what_they_are() -> None:
    fields = [
        ("id", pa.int32()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("sum", pa.decimal128(9, 2)),
    ]
    wanted = ValueFormat("json", to_bytes(pa.schema(fields)))
    rows, bad = decoded(
        [
            b'{"id": 1, "at": "2026-01-02T03:04:05Z", "sum": "1.25", "other": [1, "x"]}',
            b'{"id": "x"}',
            b'{"id": 1.5}',
            b'{"sum": "1.255"}',
        ],
        wanted,
    )
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert rows == [{"id": 1, "day": None, "at": at, "sum": decimal.Decimal("1.25")}]
    assert sorted(bad) == [1, 2, 3]


def test_names_of_fields_that_can_not_be_columns_are_changed_and_back() -> None:
    for field in ("date", "date_", "_key", "_keys", "first name", "a%20b", "ä", "Date"):
        assert field_of(column_of(field)) == field
    assert (column_of("date"), column_of("first name"), column_of("id")) == (
        "date_",
        "first%20name",
        "id",
    )
    decoder = make_decoder(JSON, BESIDE_FIELDS)
    for _ in range(2):  # as a new column, and as a known one
        rows, bad = decoded([b'{"date": 1, "first name": "x", "_offset": 5}'], decoder=decoder)
        assert (rows, bad) == ([{"date_": 1, "first%20name": "x", "_offset_": 5}], {})
    rows, bad = decoded([b'{"DATE": 1}', b'{"Id": 1, "id": 2}'], decoder=decoder)
    assert (rows, sorted(bad)) == ([], [0, 1])
    assert "differ in case only" in bad[0]


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "sum", "type": "float"}]}}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}  # fmt: skip
AT = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


def avro(schema: Any, record: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return stream.getvalue()


def order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "note": None,
        "at": AT,
        "uid": "00000000-0000-0000-0000-000000000001",
        "lines": [{"sum": 1.5}],
        "tags": {"x": 1},
        "kind": "B",
    }


def test_avro_is_read_with_the_schema_of_a_file() -> None:
    wanted = ValueFormat("avro", json.dumps(AVRO).encode())
    plain = {
        **AVRO,
        "fields": [
            {**field, "type": "string"} if field["name"] == "uid" else field
            for field in AVRO["fields"]
        ],
    }
    whole = avro(plain, order(1))
    rows, bad = decoded([whole, whole[:-3], b"", None, whole + b"x", avro(plain, order(2))], wanted)
    assert [row["id"] for row in rows] == [1, None, 2]
    assert sorted(bad) == [1, 2, 4]
    assert "left over" in bad[4]
    assert rows[0] == {**order(1), "tags": [("x", 1)]}


def test_a_schema_that_is_none_is_refused_in_a_line() -> None:
    for kind, text, words in (
        ("avro", "{", "not a usable Avro schema"),
        ("avro", '"int"', "must be a record"),
        ("avro", '{"type":"record","name":"A","fields":[{"name":"a","type":"A"}]}', "recursive"),
        ("avro", None, "give its file"),
        ("json", to_bytes(pa.schema([("a", pa.map_(pa.string(), pa.int64()))])), "not supported"),
        ("protobuf", "x", "not a set of descriptors"),
        ("protobuf", None, "give its file"),
        ("csv", None, "one of raw, json, avro, protobuf"),
    ):
        schema = text.encode() if isinstance(text, str) else text
        with pytest.raises(WrongSchema, match=words):
            make_decoder(ValueFormat(kind, schema), BESIDE_FIELDS)


def proto_file() -> descriptor_pb2.FileDescriptorProto:
    """What protoc makes of a small file; written here since it needn't be installed."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    enum = file.enum_type.add(name="Kind")
    enum.value.add(name="NONE", number=0)
    enum.value.add(name="BIG", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="sum", number=1, type=kinds.TYPE_FLOAT, label=kinds.LABEL_OPTIONAL)
    message = file.message_type.add(name="Order")
    for number, (name, kind, type_name, label) in enumerate(
        [
            ("id", kinds.TYPE_UINT64, "", kinds.LABEL_OPTIONAL),
            ("note", kinds.TYPE_STRING, "", kinds.LABEL_OPTIONAL),
            ("kind", kinds.TYPE_ENUM, ".shop.Kind", kinds.LABEL_OPTIONAL),
            ("lines", kinds.TYPE_MESSAGE, ".shop.Line", kinds.LABEL_REPEATED),
            ("first", kinds.TYPE_MESSAGE, ".shop.Line", kinds.LABEL_OPTIONAL),
            ("at", kinds.TYPE_MESSAGE, ".google.protobuf.Timestamp", kinds.LABEL_OPTIONAL),
            ("tags", kinds.TYPE_MESSAGE, ".shop.Order.TagsEntry", kinds.LABEL_REPEATED),
        ],
        start=1,
    ):
        field = message.field.add(name=name, number=number, type=kind, label=label)
        if type_name:
            field.type_name = type_name
    entry = message.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    return file


def proto_set() -> bytes:
    return bytes(descriptor_pb2.FileDescriptorSet(file=[proto_file()]).SerializeToString())


def proto(number: int) -> bytes:
    from google.protobuf import message_factory

    order = message_factory.GetMessageClass(read_message(proto_set(), "shop.Order"))()
    order.id, order.kind = number, 1
    order.lines.add(sum=1.5)
    order.at.seconds = int(AT.timestamp())
    order.tags["x"] = 2
    return bytes(order.SerializeToString())


PROTO_ROW = {
    "note": "",
    "kind": "BIG",
    "lines": [{"sum": 1.5}],
    "first": None,
    "at": AT,
    "tags": [("x", 2)],
}


def test_protobuf_is_read_with_a_set_of_descriptors() -> None:
    wanted = ValueFormat("protobuf", proto_set(), "Order")
    rows, bad = decoded([proto(2**63), b"\xff", None], wanted)
    assert rows[0] == {"id": decimal.Decimal(2**63), **PROTO_ROW}
    assert rows[1]["id"] is None
    assert bad[1].startswith("not a shop.Order")
    with pytest.raises(WrongSchema, match=r"no message Parcel: there are shop\.Line, shop\.Order"):
        make_decoder(ValueFormat("protobuf", proto_set(), "Parcel"), BESIDE_FIELDS)


def test_a_protobuf_message_whose_content_no_column_can_hold_harms_no_other() -> None:
    file = proto_file()
    file.syntax = "proto2"  # it takes any bytes for a string
    wanted = ValueFormat(
        "protobuf",
        descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(),
        "Order",
    )
    far_away = b"\x32\x0a\x08" + b"\xff" * 8 + b"\x7f"  # seconds that are no microseconds
    no_text = b"\x12\x01\xff"
    key_no_text = b"\x3a\x05\x0a\x01\xff\x10\x01"
    values = [proto(1), far_away, None, no_text, proto(2), key_no_text]
    rows, bad = decoded(values, wanted)
    assert [row["id"] for row in rows] == [1, None, 2]
    assert sorted(bad) == [1, 3, 5]
    assert "too large" in bad[1]
    assert "not a utf8 string" in bad[3]


def test_an_avro_record_whose_content_no_column_can_hold_harms_no_other() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    record = {"type": "record", "name": "A", "fields": [{"name": "sum", "type": schema}]}
    wanted = ValueFormat("avro", json.dumps(record).encode())
    rows, bad = decoded([b"\x02\x7b", b"\x06\x7f\xff\xff", b"?", b"\x02\x7c"], wanted)
    assert rows == [{"sum": decimal.Decimal("1.23")}, {"sum": decimal.Decimal("1.24")}]
    assert sorted(bad) == [1, 2]


@pytest.fixture
def registry() -> Iterator[tuple[str, dict[int, dict[str, Any]]]]:
    """A registry with what is put into the dictionary."""
    schemas: dict[int, dict[str, Any]] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.partition("?")[0].rpartition("/")[2])
            self.send_response(200 if number in schemas else 500 if number == 99 else 404)
            self.end_headers()
            self.wfile.write(json.dumps(schemas.get(number, {})).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}", schemas
    server.shutdown()
    server.server_close()


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def versions(*kinds: str) -> Iterator[dict[str, Any]]:
    for kind in kinds:
        fields: list[dict[str, Any]] = [{"name": "id", "type": kind}]
        if kind != "int":
            fields.append({"name": "more", "type": "string", "default": ""})
        yield {"type": "record", "name": "Order", "fields": fields}


def test_a_registry_tells_the_schema_of_each_value(
    registry: tuple[str, dict[int, dict[str, Any]]],
) -> None:
    address, schemas = registry
    old, new, other = versions("int", "long", "string")
    for number, schema in enumerate((old, new, other), start=1):
        schemas[number] = {"schema": json.dumps(schema)}
    schemas[4] = {"schemaType": "JSON", "schema": "{}"}
    values = [
        framed(2, avro(new, {"id": 2**40, "more": "x"})),
        framed(1, avro(old, {"id": 1})),
        b"\1" + b"\0" * 4,
        framed(3, avro(other, {"id": "y", "more": ""})),
        None,
        framed(7, b""),
        framed(4, b""),
        framed(2, b""),
        framed(1, avro(old, {"id": 2})),
        b"\0\0",
    ]
    rows, bad = decoded(values, ValueFormat("avro", registry=address))
    assert [(row["id"], row["more"]) for row in rows] == [
        (2**40, "x"),
        (1, None),
        (None, None),
        (2, None),
    ]
    assert bad[2] == bad[9] == "no schema id stands in front"
    assert bad[3] == "schema 3: id is a string, where it was a long"
    assert bad[5] == "schema 7: the registry has no schema 7"
    assert bad[6] == "schema 4: the registry has it as JSON, not as AVRO"
    assert bad[7].startswith("not Avro of this schema")
    with pytest.raises(RegistryFailed, match="with 500"):
        decoded([framed(99, b"")], ValueFormat("avro", registry=address))
    with pytest.raises(RegistryFailed, match="can't be reached"):
        decoded([framed(1, b"")], ValueFormat("avro", registry="http://127.0.0.1:1"))


def test_a_registry_knows_protobuf_and_json_too(
    registry: tuple[str, dict[int, dict[str, Any]]],
) -> None:
    address, schemas = registry
    described = base64.b64encode(proto_file().SerializeToString()).decode()
    schemas[11] = {"schemaType": "PROTOBUF", "schema": described}
    second = b"\x02\x02"  # one index: the second message of the file
    values = [framed(11, second + proto(5)), framed(11, second + b"\xff"), framed(11, b"\x02\x09")]
    rows, bad = decoded(values, ValueFormat("protobuf", registry=address))
    assert rows == [{"id": decimal.Decimal(5), **PROTO_ROW}]
    assert sorted(bad) == [1, 2]
    rows, bad = decoded([framed(5, b'{"a": 1}')], ValueFormat("json", registry=address))
    assert (rows, bad) == ([{"a": 1}], {})
