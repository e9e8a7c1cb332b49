"""B6, over REST: clients that mix every endpoint while handlers fail; each is answered in time.

`python -m tests.gateway.mix` is the same with 200 clients for 60 s.
"""

from collections.abc import Iterator

import pytest

import sapwood
from sapwood.gateway.routes import ROUTES
from tests.gateway.mix import FAULTY, LATEST_S, Report, missing, mixed
from tests.gateway.rest import Gateway, ok

CLIENTS = 40
SECONDS = 8


@pytest.fixture
def gateways() -> Iterator[list[Gateway]]:
    with sapwood.Cluster() as cluster:
        faulty = [Gateway(cluster.bootstrap, node_id=0, program=FAULTY) for _ in range(2)]
        yield faulty
        for gateway in faulty:
            gateway.stop()


def test_b6_an_answer_that_comes_too_late_is_found() -> None:
    report = Report()
    report.slowest_s = {"GET /size": LATEST_S - 1, "GET /topics": LATEST_S + 1}
    assert report.late() == {"GET /topics": LATEST_S + 1}


def test_b6_no_request_outlives_its_timeout_though_handlers_fail_stall_and_hang(
    gateways: list[Gateway],
) -> None:
    report = mixed([it.url for it in gateways], CLIENTS, SECONDS)
    assert not report.failures, "cut off by the client's timeout, or by the gateway"
    assert not report.late(), "answered, but beyond what a gateway promises"
    asked = {key for key, _ in report.statuses}
    assert asked >= {f"{route.method} {route.path}" for route in ROUTES}
    assert any(status == 500 for _, status in report.statuses), "faults were injected"
    assert any(status == 200 for _, status in report.statuses)
    for gateway in gateways:
        assert gateway.get("/livez").status_code in (200, 500, 503)
    with Gateway(gateways[0].bootstrap) as healthy:
        assert not missing(healthy.url, report), "what was acknowledged is there"
        ok(healthy.get("/readyz"))
