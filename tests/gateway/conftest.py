"""One node with a gateway beside it, which all tests here share and none hurts."""

from collections.abc import Iterator

import pytest

from tests.gateway.rest import Gateway


@pytest.fixture(scope="session")
def gateway(bootstrap: str) -> Iterator[Gateway]:
    with Gateway(bootstrap, node_id=0) as gateway:
        yield gateway


@pytest.fixture
def topic(gateway: Gateway) -> str:
    from tests.helpers import unique

    name = unique("rest")
    assert gateway.post("/topics", topic=name, partitions=3).status_code == 201
    return name
