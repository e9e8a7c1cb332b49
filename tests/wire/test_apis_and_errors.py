"""Facts that are kept as tables, held against the schemas that they were taken from."""

import pickle
import subprocess
import sys

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map

from sapwood.wire.apis import Api, can_code, codec_versions, is_flexible
from sapwood.wire.errors import ErrorCode, KafkaError
from tests.wire.samples import all_messages


def test_every_api_has_kafkas_key_and_name() -> None:
    kafka = {key: name.upper() for key, name in api_key_map.items()}
    assert {api.value: api.name for api in Api if api < 20000} == kafka


def test_the_versions_are_those_of_the_schemas() -> None:
    for api, name in api_key_map.items():
        assert codec_versions(api) == (min(schema_name_map[name]), max(schema_name_map[name]))
    for message in all_messages():
        assert can_code(message.api, message.version)
        flexible = message.message_class.__flexible__
        assert is_flexible(message.api, message.version) == flexible, str(message)


def test_what_has_no_schema_cannot_be_coded() -> None:
    for api, version in ((Api.PRODUCE, 2), (Api.PRODUCE, 14), (4, 0), (-1, 0), (19999, 0)):
        assert not can_code(api, version)


def test_every_error_has_kafkas_code_and_name() -> None:
    kafka = {error.value: (error.name.upper(), error.retriable) for error in KioErrorCode}
    assert {error.value: (error.name, error.retriable) for error in ErrorCode} == kafka


def test_an_error_names_its_code_and_says_what_to_do() -> None:
    error = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "use letters")
    assert str(error) == "INVALID_TOPIC_EXCEPTION: use letters"
    assert str(KafkaError(ErrorCode.NONE)) == "NONE"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.message) == (error.code, error.message)


def test_the_codec_imports_neither_kios_serializers_nor_a_test_library() -> None:
    script = (
        "import sys; from sapwood.wire import frames, records; "
        "assert not any(name.startswith('kio') for name in sys.modules);"
        "from sapwood.wire.codec import decode_request; decode_request(18, 0, b'');"
        "assert not {'kio.serial', 'kio.index', 'hypothesis'} & set(sys.modules), sys.modules;"
        "import hypothesis"  # still importable afterwards
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
