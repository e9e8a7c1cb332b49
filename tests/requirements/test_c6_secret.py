"""C6, the secret: nodes prove to each other that they know it; strangers get nowhere."""

import pytest

import sapwood
from sapwood.node import secret
from sapwood.node.asking import NoAnswer, NodeConnection
from sapwood.server.gate import OWN_PUBLIC_KEYS
from sapwood.wire.apis import Api
from tests.faults.raw import RequestMaker, Wire, request
from tests.helpers import eventually, port_of

PRIVATE = [api for api in Api if api > Api.AUTHENTICATE and api not in OWN_PUBLIC_KEYS]


def refusals(cluster: sapwood.Cluster) -> float:
    found = {it.name: it.value for it in cluster.status(0).metrics}
    return float(found["sapwood_peer_refused_total"])


@pytest.mark.parametrize("api", PRIVATE, ids=lambda api: api.name)
def test_c6_a_stranger_cannot_vote_replicate_register_or_read_what_nodes_tell_each_other(
    api: Api, cluster: sapwood.Cluster
) -> None:
    import random

    before = refusals(cluster)
    maker = RequestMaker(random.Random(6), words=["t"], blobs=[b""])
    with Wire(port_of(cluster.bootstrap)) as wire:
        assert wire.ask(request(api, 0, maker.body(api, 0))) is None, "closed without an answer"
    eventually(lambda: refusals(cluster) == before + 1)
    assert "WARNING" in cluster.log(0)


def test_c6_a_wrong_secret_is_refused_counted_and_never_written_down(
    cluster: sapwood.Cluster,
) -> None:
    before = refusals(cluster)
    with pytest.raises(NoAnswer, match="secret"):
        NodeConnection(cluster.address(0), b"0" * 64)
    eventually(lambda: refusals(cluster) == before + 1)
    shared = secret.read(cluster.layout.secret_file)
    log = cluster.log(0)
    assert shared.hex() not in log
    assert shared.decode("latin-1") not in log
