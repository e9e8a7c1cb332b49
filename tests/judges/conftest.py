"""Each client as a fixture; `judge` and `admin` run a test once with every one of them."""

from collections.abc import Iterator

import pytest

from tests.helpers import unique
from tests.judges.aio import Aio
from tests.judges.confluent import Confluent
from tests.judges.judge import Admin, Judge
from tests.judges.kcat import Kcat
from tests.judges.python import KafkaPython

JUDGES: dict[str, type[Judge]] = {it.name: it for it in (Kcat, Confluent, Aio, KafkaPython)}
ADMINS: dict[str, type[Admin]] = {it.name: it for it in (Confluent, Aio, KafkaPython)}


@pytest.fixture(params=list(JUDGES))
def judge(request: pytest.FixtureRequest, bootstrap: str) -> Judge:
    client: type[Judge] = JUDGES[request.param]
    return client(bootstrap)


@pytest.fixture(params=list(ADMINS))
def admin(request: pytest.FixtureRequest, bootstrap: str) -> Admin:
    client: type[Admin] = ADMINS[request.param]
    return client(bootstrap)


@pytest.fixture
def judges(bootstrap: str) -> list[Judge]:
    return [client(bootstrap) for client in JUDGES.values()]


@pytest.fixture
def confluent(bootstrap: str) -> Confluent:
    return Confluent(bootstrap)


@pytest.fixture
def kafka_python(bootstrap: str) -> KafkaPython:
    return KafkaPython(bootstrap)


@pytest.fixture
def topic(confluent: Confluent) -> Iterator[str]:
    """A fresh topic with one partition, deleted afterwards."""
    name = unique("judged")
    confluent.create_topic(name)
    yield name
    confluent.delete_topic(name)


@pytest.fixture
def topic_for_large_messages(confluent: Confluent) -> str:
    name = unique("large")
    confluent.create_topic(name, config={"max.message.bytes": "20000000"})
    return name
