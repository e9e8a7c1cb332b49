"""Schemas by their numbers, from a registry that speaks Confluent's REST dialect."""

from __future__ import annotations

import functools
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from sapwood.spark.values.decoding import WrongSchema

_TIMEOUT_S = 10.0
_MOST_BYTES = 4 * 2**20
_MOST_SCHEMAS = 1000


class RegistryFailed(OSError):
    """The registry can't be asked: nothing is wrong with the records."""


@functools.lru_cache(_MOST_SCHEMAS)  # a number means the same schema for ever
def schema_of(address: str, schema_id: int, kind: str) -> str:
    """The text of a schema; for Protobuf its descriptor in base 64."""
    if not address.startswith(("http://", "https://")):
        raise RegistryFailed(
            f"the registry's address {address} must begin with http:// or https://"
        )
    question = "?format=serialized" if kind == "PROTOBUF" else ""
    url = f"{address.rstrip('/')}/schemas/ids/{schema_id}{question}"
    found = _ask(url, schema_id)
    there = found.get("schemaType", "AVRO")
    if there != kind:
        raise WrongSchema(f"the registry has it as {there}, not as {kind}")
    if found.get("references"):
        raise WrongSchema("it refers to other schemas, which isn't supported")
    return str(found.get("schema", ""))


def _ask(url: str, schema_id: int) -> dict[str, Any]:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            data = response.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise WrongSchema(f"the registry has no schema {schema_id}") from None
        raise RegistryFailed(f"the schema registry answers {url} with {error.code}") from None
    except OSError as error:
        raise RegistryFailed(f"the schema registry can't be reached at {url}: {error}") from None
    if len(data) > _MOST_BYTES:
        raise WrongSchema(f"it has more than {_MOST_BYTES} bytes")
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RegistryFailed(f"what answers at {url} is no schema registry")
    return found
