"""A4: a message that is sent at any node reaches those who listen at every node."""

import sapwood
from tests.gateway.rest import Gateway
from tests.gateway.talk import OK, Talk, TcpTalk, WebSocketTalk
from tests.helpers import unique

SENDS = 10


def test_a4_what_is_sent_at_one_node_is_heard_at_all_in_the_order_of_its_sender() -> None:
    topic = unique("a4")
    with sapwood.Cluster(nodes=3, edges=2) as cluster:
        gateways = [Gateway(cluster.address(node), node_id=node) for node in cluster.nodes]
        gateways += [Gateway(cluster.edge_address(edge)) for edge in range(2)]
        listeners: list[Talk] = []
        for gateway in gateways:
            listeners.append(TcpTalk(gateway.ready["lines"]))
            listeners.append(WebSocketTalk(gateway.ready["rest"]))
        for listener in listeners:
            assert listener.say("SUBSCRIBE", topic=topic) == OK
        senders = [TcpTalk(gateway.ready["lines"]) for gateway in gateways]
        for number, sender in enumerate(senders):
            assert sender.say("USER", name=f"sender-{number}") == OK
        for count in range(SENDS):
            for sender in senders:
                assert sender.say("SEND", topic=topic, message=str(count)) == OK
        for listener in listeners:
            heard: dict[str, list[str]] = {}
            ids = set()
            for _ in range(SENDS * len(senders)):
                message = listener.message()
                heard.setdefault(message["user"], []).append(message["message"])
                ids.add(message["id"])
            assert len(ids) == SENDS * len(senders), "none twice"
            assert set(heard) == {f"sender-{number}" for number in range(len(senders))}
            assert all(it == [str(count) for count in range(SENDS)] for it in heard.values())
        for talk in (*listeners, *senders):
            talk.close()
        for gateway in gateways:
            assert "Traceback" not in gateway.stop()
