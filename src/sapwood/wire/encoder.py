"""Writes the source of an encoder for one message.

Neighbouring fields of fixed size and the length that follows them are packed in one call into one
growing buffer. Records are not copied: they split the buffer, unless they are so small that a
copy costs less than one more part.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from sapwood.wire.decoder import fresh
from sapwood.wire.schema import FIXED, MISSING, Entity, Field, Struct

Buffer = bytes | bytearray | memoryview
Encoder = Callable[[Struct, bytearray, list[Buffer]], None]

SMALL_RECORDS = 4096

Run = list[tuple[str, str]]  # struct's character and the expression, of fields not yet packed


def compile_encoder(entity: Entity) -> Encoder:
    writer = _EncoderWriter(entity)
    exec(compile(writer.source(), f"<encoder of {entity.name}>", "exec"), writer.names)
    encoder: Encoder = writer.names["encode"]
    return encoder


def varint(value: int) -> bytes:
    """An unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def records_size(records: Buffer | list[Buffer]) -> int:
    return sum(map(len, records)) if isinstance(records, list) else len(records)


def attach_records(
    parts: list[Buffer], buffer: bytearray, records: Buffer | list[Buffer], size: int
) -> bytearray:
    """Put records behind the buffer; the buffer to go on with."""
    buffers: Sequence[Buffer] = records if isinstance(records, list) else (records,)
    if size <= SMALL_RECORDS:
        for part in buffers:
            buffer += part
        return buffer
    parts.append(buffer)
    parts += buffers
    return bytearray()


class _EncoderWriter:
    def __init__(self, entity: Entity) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.variables = 0
        self.buffer = "b"
        self.names: dict[str, Any] = {
            "Struct": Struct,
            "pack": struct.pack,
            "varint": varint,
            "records_size": records_size,
            "attach_records": attach_records,
        }
        self.entity = entity

    def source(self) -> str:
        run: Run = []
        self.entity_body(self.entity, "message", run)
        self.pack(run)
        self.add("parts.append(b)")
        return "\n".join(["def encode(message, b, parts):", *self.lines])

    def add(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def variable(self) -> str:
        self.variables += 1
        return f"v{self.variables}"

    def pack(self, run: Run) -> None:
        if run:
            self.add(f"{self.buffer} += {self.packed(run)}")
        run.clear()

    def packed(self, run: Run) -> str:
        layout = struct.Struct(">" + "".join(character for character, _ in run))
        if all(character == "x" for character, _ in run):
            return repr(bytes(len(run)))
        name = "pack_" + layout.format[1:].replace("?", "_")
        self.names[name] = layout.pack
        return f"{name}({', '.join(value for _, value in run if value)})"

    def length(self, run: Run, flexible: bool, legacy: str, variable: str, length: str) -> None:
        """Pack what waits, and a length or count behind it; `length` is -1 for null."""
        if not flexible:
            run.append((legacy, length))
            self.pack(run)
            return
        self.add(f"{variable} = {length} + 1")
        if run:
            short = f"{self.buffer} += {self.packed([*run, ('B', variable)])}"
            long = f"{self.buffer} += {self.packed(run)} + varint({variable})"
        else:
            short = f"{self.buffer}.append({variable})"
            long = f"{self.buffer} += varint({variable})"
        self.add(f"if {variable} < 128: {short}")
        self.add(f"else: {long}")
        run.clear()

    def entity_body(self, entity: Entity, owner: str, run: Run) -> None:
        if entity.fields or entity.tagged:
            fields = self.variable()
            self.add(f"{fields} = {owner}.__dict__")
            for field in entity.fields:
                self.field(field, entity.flexible, self.lookup(fields, field), run)
        if entity.tagged:
            self.tagged_fields(entity, fields, run)
        elif entity.flexible:
            run.append(("x", ""))

    def lookup(self, fields: str, field: Field) -> str:
        if field.default is MISSING:
            return f"{fields}[{field.name!r}]"
        return f"{fields}.get({field.name!r}, {fresh(field.default)})"

    def field(self, field: Field, flexible: bool, source: str, run: Run) -> None:
        if field.is_array:
            self.array(field, flexible, source, run)
        else:
            self.value(field, flexible, source, run)

    def value(self, field: Field, flexible: bool, source: str, run: Run) -> None:
        if field.kind in FIXED:
            run.append((FIXED[field.kind][0], source))
        elif field.entity is None:
            self.sized(field, flexible, source, run)
        elif field.nullable:
            self.nullable_entity(field.entity, source, run)
        else:
            self.entity_body(field.entity, source, run)

    def sized(self, field: Field, flexible: bool, source: str, run: Run) -> None:
        """A string, bytes or records."""
        value, size = self.variable(), self.variable()
        self.add(f"{value} = {source}")
        if field.kind == "string":
            encode = f"{value} = {value}.encode()"
            self.add(f"if {value} is not None: {encode}" if field.nullable else encode)
        if field.kind == "records":
            # Records are nullable in Kafka's own code wherever a schema has them.
            total = self.variable()
            self.add(f"{total} = -1 if {value} is None else records_size({value})")
            self.length(run, flexible, "i", size, total)
            attach = f"attach_records(parts, {self.buffer}, {value}, {total})"
            self.add(f"if {total} > 0: {self.buffer} = {attach}")
        else:
            measure = f"len({value})"
            length = f"(-1 if {value} is None else {measure})" if field.nullable else measure
            self.length(run, flexible, "h" if field.kind == "string" else "i", size, length)
            self.add(f"{f'if {value}: ' if field.nullable else ''}{self.buffer} += {value}")

    def array(self, field: Field, flexible: bool, source: str, run: Run) -> None:
        value, count = self.variable(), self.variable()
        self.add(f"{value} = {source}")
        length = f"(-1 if {value} is None else len({value}))" if field.nullable else f"len({value})"
        self.length(run, flexible, "i", count, length)
        # An empty array has nothing to loop over, but null can't be looped over at all.
        guarded = field.nullable or field.kind in FIXED
        if guarded:
            self.add(f"if {value}:")
            self.indent += 1
        if field.kind in FIXED:
            character = FIXED[field.kind][0]
            repeated = (
                f"'>' + {character!r} * len({value})"
                if len(character) > 1
                else f"f'>{{len({value})}}{character}'"
            )
            self.add(f"{self.buffer} += pack({repeated}, *{value})")
        else:
            item = self.variable()
            self.add(f"for {item} in {value}:")
            self.indent += 1
            element = Field(field.name, field.kind, False, False, None, MISSING, field.entity)
            inner: Run = []
            self.value(element, flexible, item, inner)
            self.pack(inner)
            self.indent -= 1
        if guarded:
            self.indent -= 1

    def nullable_entity(self, entity: Entity, source: str, run: Run) -> None:
        value = self.variable()
        self.add(f"{value} = {source}")
        run.append(("b", f"-1 if {value} is None else 1"))
        self.pack(run)
        self.add(f"if {value} is not None:")
        self.indent += 1
        inner: Run = []
        self.entity_body(entity, value, inner)
        self.pack(inner)
        self.indent -= 1

    def tagged_fields(self, entity: Entity, fields: str, run: Run) -> None:
        count, section = self.variable(), self.variable()
        self.add(f"{count} = 0")
        for field in entity.tagged:
            self.tagged_field(field, fields, count, section)
        run.append(("B", count))
        self.pack(run)
        self.add(f"if {count}: {self.buffer} += {section}")

    def tagged_field(self, field: Field, fields: str, count: str, section: str) -> None:
        value, content = self.variable(), self.variable()
        default = f"default_{value}"
        self.names[default] = field.default
        self.add(f"{value} = {fields}.get({field.name!r}, {default})")
        # A field that has its default is left out, also when somebody set it to just that.
        if isinstance(field.default, list):
            self.add(f"if {value}:")
        else:
            self.add(f"if {value} is not {default} and {value} != {default}:")
        self.indent += 1
        self.add(f"if not {count}: {section} = bytearray()")
        self.add(f"{count} += 1")
        self.add(f"{content} = bytearray()")
        outer, self.buffer = self.buffer, content
        run: Run = []
        self.field(field, True, value, run)
        self.pack(run)
        self.buffer = outer
        self.add(f"{section} += varint({field.tag}) + varint(len({content})) + {content}")
        self.indent -= 1
