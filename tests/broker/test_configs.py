"""Changes of configs that are refused, each with Kafka's code."""

from pathlib import Path

import pytest

from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from tests.broker.asking import Asking, on_a_loop, started

SET, DELETE = 0, 1
TOPIC = 2


def resource(*configs: tuple[str, str | None]) -> Struct:
    entries = [Struct(name=name, value=value, config_operation=SET) for name, value in configs]
    return Struct(resource_type=TOPIC, resource_name="set", configs=entries)


async def codes(it: Asking, api: Api, *resources: Struct, version: int = 0) -> list[int]:
    message = Struct(resources=list(resources), validate_only=False)
    answer = await it.answer(api, version, message)
    return [response.error_code for response in answer.responses]


@on_a_loop
async def test_requests_that_make_no_sense_are_refused_as_such(tmp_path: Path) -> None:
    invalid = ErrorCode.INVALID_REQUEST
    once = resource(("retention.ms", "1"))
    async with started(tmp_path) as it:
        await it.create("set")
        for api in (Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS):
            assert await codes(it, api, resource(("retention.ms", None))) == [invalid]
            twice = resource(("retention.ms", "1"), ("retention.ms", "2"))
            assert await codes(it, api, twice) == [invalid]
            assert await codes(it, api, once, once) == [invalid, invalid]
        assert it.broker.state.image.overrides(TOPIC, "set") == {}


@on_a_loop
async def test_a_value_too_long_for_an_older_version_is_refused_by_all(tmp_path: Path) -> None:
    name = "leader.replication.throttled.replicas"
    async with started(tmp_path) as it:
        await it.create("set")
        api = Api.INCREMENTAL_ALTER_CONFIGS
        too_long = resource((name, "x" * 40_000))
        assert await codes(it, api, too_long, version=1) == [ErrorCode.INVALID_CONFIG]
        longest = resource((name, "x" * 32_767))
        assert await codes(it, api, longest, version=1) == [0]
        wanted = [Struct(resource_type=TOPIC, resource_name="set", configuration_keys=[name])]
        message = Struct(resources=wanted, include_synonyms=True)
        described = await it.answer(Api.DESCRIBE_CONFIGS, 1, message)
        assert described.results[0].configs[0].value == "x" * 32_767


@pytest.mark.parametrize("character", ["x", "9"])
def test_a_long_value_that_is_refused_costs_no_connection(tmp_path: Path, character: str) -> None:
    @on_a_loop
    async def asked() -> None:
        async with started(tmp_path) as it:
            await it.create("set")
            long = resource(("retention.ms", character * 32_700))
            refused = await codes(it, Api.INCREMENTAL_ALTER_CONFIGS, long)
            assert refused == [ErrorCode.INVALID_CONFIG]

    asked()
