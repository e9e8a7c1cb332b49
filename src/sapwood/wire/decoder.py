"""Writes the source of a decoder for one message.

The source is straight-line Python. Neighbouring fields of fixed size, together with the length or
the count that follows them, are unpacked in one call; entities are decoded in place, without a
function call each. Nothing is allocated for a count before it was held against the bytes left.
"""

import struct
from collections.abc import Callable
from typing import Any

from sapwood.wire.errors import MalformedMessage
from sapwood.wire.schema import FIXED, MISSING, Entity, Field, Struct

Decoder = Callable[[Any, int], Struct]

Run = list[tuple[str, str]]  # struct's character and the variable, of fields not yet unpacked


def compile_decoder(entity: Entity) -> Decoder:
    writer = _DecoderWriter(entity)
    exec(compile(writer.source(), f"<decoder of {entity.name}>", "exec"), writer.names)
    decoder: Decoder = writer.names["decode"]
    return decoder


def varint_rest(data: Any, position: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte, with its high bit set, was read already."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise MalformedMessage("a varint is longer than 32 bits")


def skip_tags(data: Any, position: int, count: int) -> int:
    """Step over a section of tagged fields that are all unknown."""
    end = len(data)
    if count > 127:
        count, position = varint_rest(data, position, count)
    previous = -1
    for _ in range(count):
        tag = data[position]
        position += 1
        if tag > 127:
            tag, position = varint_rest(data, position, tag)
        size = data[position]
        position += 1
        if size > 127:
            size, position = varint_rest(data, position, size)
        position += size
        if position > end:
            raise MalformedMessage("a tagged field is cut short")
        if tag <= previous:
            raise MalformedMessage(f"tag {tag} follows tag {previous}")
        previous = tag
    return position


def _refuse(what: str) -> None:
    raise MalformedMessage(what)


def _refuse_tag(tag: int, previous: int) -> None:
    raise MalformedMessage(f"tag {tag} follows tag {previous}")


class _DecoderWriter:
    def __init__(self, entity: Entity) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.variables = 0
        self.names: dict[str, Any] = {
            "Struct": Struct,
            "unpack_from": struct.unpack_from,
            "varint_rest": varint_rest,
            "skip_tags": skip_tags,
            "refuse": _refuse,
            "refuse_tag": _refuse_tag,
        }
        # Records are handed out as views of the caller's data; a message without any is decoded
        # from a copy, because bytes are quicker to index and to slice than a view.
        self.views = entity.has_records()
        self.entity = entity

    def source(self) -> str:
        self.add("d = memoryview(data)" if self.views else "d = bytes(data)")
        self.add("L = len(d)")
        run: Run = []
        message = self.entity_body(self.entity, run)
        self.unpack(run)
        # Kafka ignores what follows a message, and librdkafka relies on it: its Metadata request
        # for all topics has three bytes too many. What lies beyond the end is still refused.
        self.add(f"if p > L: refuse('the {self.entity.name} ends too early')")
        self.add(f"return {message}")
        return "\n".join(["def decode(data, p):", *self.lines])

    def add(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def variable(self) -> str:
        self.variables += 1
        return f"v{self.variables}"

    def unpack(self, run: Run) -> None:
        if not run:
            return
        if len(run) == 1 and run[0][0] == "B":
            self.add(f"{run[0][1]} = d[p]")
            self.add("p += 1")
        else:
            layout = struct.Struct(">" + "".join(character for character, _ in run))
            name = "unpack_" + layout.format[1:].replace("?", "_")
            self.names[name] = layout.unpack_from
            targets = ", ".join(variable for _, variable in run)
            self.add(f"{targets}{',' if len(run) == 1 else ''} = {name}(d, p)")
            self.add(f"p += {layout.size}")
        run.clear()

    def entity_body(self, entity: Entity, run: Run) -> str:
        """Decode the fields; the expression that makes the entity of them."""
        values = [(field.name, self.field(field, entity.flexible, run)) for field in entity.fields]
        if entity.tagged:
            values += self.tagged_fields(entity, run)
        elif entity.flexible:
            count = self.variable()
            run.append(("B", count))
            self.unpack(run)
            self.add(f"if {count}: p = skip_tags(d, p, {count})")
        return "Struct(" + ", ".join(f"{name}={value}" for name, value in values) + ")"

    def field(self, field: Field, flexible: bool, run: Run) -> str:
        if field.is_array:
            return self.array(field, flexible, run)
        return self.value(field, flexible, run)

    def value(self, field: Field, flexible: bool, run: Run) -> str:
        if field.entity is not None:
            if field.nullable:
                return self.nullable_entity(field, run)
            return self.entity_body(field.entity, run)
        value = self.variable()
        if field.kind in FIXED:
            run.append((FIXED[field.kind][0], value))
            return value
        self.length(field, flexible, run, value, is_count=False)
        self.add(f"e = p + {value}")
        self.add(f"if e > L: refuse('{field.name} is cut short')")
        if field.kind == "string":
            text = "str(d[p:e], 'utf-8')" if self.views else "d[p:e].decode()"
            self.add(f"{value} = {text}")
        elif field.kind == "bytes":
            self.add(f"{value} = bytes(d[p:e])")
        else:
            self.add(f"{value} = d[p:e]")
        self.add("p = e")
        if field.nullable:
            self.indent -= 1
        return value

    def length(self, field: Field, flexible: bool, run: Run, value: str, is_count: bool) -> None:
        """Read a length or a count; if it may be null, open the branch where it is not."""
        if flexible:
            run.append(("B", value))
            self.unpack(run)
            self.add(f"if {value} > 127: {value}, p = varint_rest(d, p, {value})")
            null = f"not {value}"
        else:
            run.append(("h" if field.kind == "string" and not is_count else "i", value))
            self.unpack(run)
            null = f"{value} < 0"
        if field.nullable:
            # Kafka writes -1; anything below is as little a length as that.
            if not flexible:
                self.add(f"if {value} < -1: refuse('{field.name} has a negative length')")
            self.add(f"if {null}: {value} = None")
            self.add("else:")
            self.indent += 1
        else:
            self.add(f"if {null}: refuse('{field.name} must not be null')")
        if flexible:
            self.add(f"{value} -= 1")

    def array(self, field: Field, flexible: bool, run: Run) -> str:
        value = self.variable()
        self.length(field, flexible, run, value, is_count=True)
        if field.entity is not None:
            smallest = field.entity.smallest_size()
        elif field.kind in FIXED:
            smallest = FIXED[field.kind][1]
        else:
            smallest = 1 if flexible else 2 if field.kind == "string" else 4
        self.add(
            f"if {value} * {smallest} > L - p: refuse(f'{{{value}}} {field.name} are announced, "
            "{L - p} bytes are left')"
        )
        if field.kind == "uuid":
            self.add(f"e = p + {value} * 16")
            self.add(f"{value} = [bytes(d[i:i + 16]) for i in range(p, e, 16)]")
            self.add("p = e")
        elif field.kind in FIXED:
            self.add(f"e = p + {value} * {smallest}")
            layout = f"f'>{{{value}}}{FIXED[field.kind][0]}'"
            self.add(f"{value} = list(unpack_from({layout}, d, p)) if {value} else []")
            self.add("p = e")
        else:
            self.loop(field, flexible, value)
        if field.nullable:
            self.indent -= 1
        return value

    def loop(self, field: Field, flexible: bool, value: str) -> None:
        items = self.variable()
        self.add(f"{items} = []")
        self.add(f"for _ in range({value}):")
        self.indent += 1
        run: Run = []
        element = Field(field.name, field.kind, False, False, None, MISSING, field.entity)
        item = self.value(element, flexible, run)
        self.unpack(run)
        self.add(f"{items}.append({item})")
        self.indent -= 1
        self.add(f"{value} = {items}")

    def nullable_entity(self, field: Field, run: Run) -> str:
        value = self.variable()
        run.append(("b", value))
        self.unpack(run)
        self.add(f"if {value} < 0: {value} = None")
        self.add("else:")
        self.indent += 1
        if field.entity is not None:
            inner: Run = []
            made = self.entity_body(field.entity, inner)
            self.unpack(inner)
            self.add(f"{value} = {made}")
        self.indent -= 1
        return value

    def tagged_fields(self, entity: Entity, run: Run) -> list[tuple[str, str]]:
        count, previous, tag, end = (self.variable() for _ in range(4))
        run.append(("B", count))
        self.unpack(run)
        values = []
        for field in entity.tagged:
            value = self.variable()
            # The default is made anew each time: a handler may change what it was given.
            self.add(f"{value} = {fresh(field.default)}")
            values.append((field.name, value))
        self.add(f"if {count}:")
        self.indent += 1
        self.add(f"if {count} > 127: {count}, p = varint_rest(d, p, {count})")
        self.add(f"{previous} = -1")
        self.add(f"for _ in range({count}):")
        self.indent += 1
        for variable in (tag, end):
            self.add(f"{variable} = d[p]")
            self.add("p += 1")
            self.add(f"if {variable} > 127: {variable}, p = varint_rest(d, p, {variable})")
        self.add(f"{end} += p")
        self.add(f"if {end} > L: refuse('a tagged field is cut short')")
        self.add(f"if {tag} <= {previous}: refuse_tag({tag}, {previous})")
        self.add(f"{previous} = {tag}")
        for position, field in enumerate(entity.tagged):
            self.add(f"{'elif' if position else 'if'} {tag} == {field.tag}:")
            self.indent += 1
            inner: Run = []
            decoded = self.field(field, True, inner)
            self.unpack(inner)
            self.add(f"{values[position][1]} = {decoded}")
            self.add(f"if p != {end}: refuse('{field.name} does not fill its tag')")
            self.indent -= 1
        self.add(f"else: p = {end}")
        self.indent -= 2
        return values


def fresh(value: object) -> str:
    """An expression for a value of a schema's default."""
    if isinstance(value, Struct):
        arguments = (f"{name}={fresh(item)}" for name, item in vars(value).items())
        return f"Struct({', '.join(arguments)})"
    if isinstance(value, list):
        return f"[{', '.join(fresh(item) for item in value)}]"
    return repr(value)
