"""C7: a message reaches all who are connected then, even if servers fail while it is on its way."""

import threading
from collections.abc import Callable
from contextlib import ExitStack

import sapwood
from tests.gateway.rest import Gateway
from tests.gateway.talk import OK, Talk, TcpTalk, WebSocketTalk
from tests.helpers import unique
from tests.requirements.trees import Tree

SENDS = 60


def test_c7_every_member_hears_everything_once_and_in_order_while_servers_die() -> None:
    topic = unique("c7")
    with sapwood.Cluster(nodes=3) as cluster, ExitStack() as stack:
        tree = Tree(cluster)
        tree.grow(p="0", q="p", r="q", s="0")
        addresses = [cluster.edge_address(it) for it in tree.edges.values()]
        below = [stack.enter_context(Gateway(",".join(addresses))) for _ in range(2)]
        at_core = stack.enter_context(Gateway(cluster.bootstrap))
        members: list[Talk] = []
        for gateway in (*below, at_core):
            members.append(stack.enter_context(TcpTalk(gateway.ready["lines"])))
            members.append(stack.enter_context(WebSocketTalk(gateway.ready["rest"])))
        for member in members:
            assert member.say("SUBSCRIBE", topic=topic) == OK
        sender = stack.enter_context(TcpTalk(at_core.ready["lines"]))
        assert sender.say("USER", name="ann") == OK
        progress = [threading.Event() for _ in range(3)]

        def send() -> None:
            for number in range(SENDS):
                while sender.say("SEND", topic=topic, message=str(number), id=f"m-{number}") != OK:
                    pass
                if number % (SENDS // 3) == 0:
                    progress[number // (SENDS // 3)].set()

        sending = threading.Thread(target=send)
        sending.start()
        deaths: list[Callable[[], None]] = [
            lambda: tree.kill("p"),
            lambda: cluster.kill(cluster.leader(topic)),
            lambda: tree.kill("r"),
        ]
        for event, kill in zip(progress, deaths, strict=True):
            assert event.wait(60)
            kill()
        sending.join(120)
        for member in members:
            heard = [member.message()["message"] for _ in range(SENDS)]
            assert heard == [str(number) for number in range(SENDS)]
