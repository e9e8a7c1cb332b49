"""A small good history, to be spoilt in one place by each test."""

from dataclasses import dataclass, field

from chaos.history import Copy, End, Fault, History, Line, Read, Send, Start

TOPIC = "t"


def send(number: int, producer: str = "a", *, at: float | None = None, **more: object) -> Send:
    """Record `number` of a producer, acknowledged at the offset of the same number."""
    begun = float(number) if at is None else at
    fields: dict[str, object] = {
        "client": producer,
        "topic": TOPIC,
        "partition": 0,
        "value": f"{producer}:{number}",
        "at": begun,
        "done": begun + 0.5,
        "outcome": "ok",
        "offset": number,
    }
    return Send(**{**fields, **more})  # type: ignore[arg-type]


def read(client: str, offset: int, *values: str, at: float = 50.0, **more: object) -> Read:
    fields: dict[str, object] = {
        "client": client,
        "topic": TOPIC,
        "partition": 0,
        "offset": offset,
        "values": list(values),
        "at": at,
        "done": at + 0.1,
    }
    return Read(**{**fields, **more})  # type: ignore[arg-type]


def end(offset: int, at: float, node: int = 0) -> End:
    return End(
        client=f"probe-{node}", topic=TOPIC, partition=0, at=at, done=at + 0.1, outcome="ok",
        offset=offset, node=node,
    )  # fmt: skip


@dataclass
class Good:
    """Ten records, acknowledged one a second; a reader, a final reader and three nodes' copies."""

    count: int = 10
    replicas: int = 3
    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    others: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        values = [f"a:{number}" for number in range(self.count)]
        half = self.count // 2
        self.sends = [send(number) for number in range(self.count)]
        self.reads = [
            read("reader", 0, *values[:half], at=20.0),
            read("reader", half, *values[half:], at=21.0),
            read("final", 0, *values, final=True),
        ]
        self.ends = [end(number + 1, number + 0.6) for number in range(self.count)]
        self.copies = [
            Copy(node=node, topic=TOPIC, partition=0, offset=0, values=list(values))
            for node in range(3)
        ]

    @property
    def final(self) -> Read:
        return self.reads[2]

    def history(self) -> History:
        start = Start(version=1, seed=1, nodes=3, replicas=self.replicas, began="")
        everything = (self.sends, self.reads, self.ends, self.copies, self.others)
        return History([start, *(line for some in everything for line in some)])


def fault(name: str, at: float, done: float, *nodes: int, **about: object) -> Fault:
    return Fault(name=name, nodes=list(nodes), at=at, done=done, about=about)
