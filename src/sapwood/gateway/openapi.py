"""`/openapi.json`: the table of routes as OpenAPI 3.1."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from sapwood.gateway.problems import MEDIA_TYPE, TITLES, Problem
from sapwood.gateway.routes import ROUTES, Route

_REFERENCE = "#/components/schemas/{name}"
_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds to wait.",
        "schema": {"type": "string"},
        "required": True,
    }
}


@cache
def document(version: str) -> bytes:
    types: list[Any] = [Problem]
    for route in ROUTES:
        types += [it for it in (route.hint("query"), route.hint("body")) if it]
        types += route.answers.values()
    types = list(dict.fromkeys(types))
    references, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schemas = dict(zip(types, references, strict=True))
    queries = {it for route in ROUTES if (it := route.hint("query")) is not None}
    parameters = {it: _parameters(components[it.__name__]) for it in queries}
    for query in queries:
        del components[query.__name__]
    paths: dict[str, Any] = {}
    for route in ROUTES:
        query = route.hint("query")
        operation = _operation(route, parameters.get(query, []), schemas)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Sapwood", "version": version},
            "paths": paths,
            "components": {"schemas": components},
        }
    )


def _operation(
    route: Route, parameters: list[dict[str, Any]], schemas: dict[Any, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{route.path.replace('/', '_')}",
        "summary": route.summary,
        "responses": {
            str(status): _response(route, status, has_answer, schemas)
            for status, has_answer in route.statuses().items()
        },
    }
    if route.description:
        operation["description"] = route.description
    if parameters:
        operation["parameters"] = parameters
    body = route.hint("body")
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[body]}},
        }
    return operation


def _response(
    route: Route, status: int, has_answer: bool, schemas: dict[Any, Any]
) -> dict[str, Any]:
    if status >= 400:
        problem = {"schema": schemas[Problem]}
        found = {"description": TITLES[status], "content": {MEDIA_TYPE: problem}}
        return {**found, "headers": _RETRY_AFTER} if status == 503 else found
    if not has_answer:
        return {"description": "Done: there is nothing to say, or nothing to give"}
    answer = route.answers.get(status)
    if answer is None:
        return {"description": "OK", "content": {route.media_type: {"schema": {"type": "string"}}}}
    content: dict[str, Any] = {route.media_type: {"schema": schemas[answer]}}
    if route.path == "/":
        content["text/html"] = {"schema": {"type": "string"}}
    return {"description": "OK", "content": content}


def _parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", [])
    found = []
    for name, each in schema["properties"].items():
        # What may be left out may be null inside; in a URL it is left out.
        each = dict(each)
        choices = [it for it in each.pop("anyOf", []) if it != {"type": "null"}]
        if choices:
            default = each.pop("default", None)
            each = {**each, **choices[0]}
            if default is not None:
                each["default"] = default
        parameter = {"name": name, "in": "query", "required": name in required, "schema": each}
        if "description" in each:
            parameter["description"] = each.pop("description")
        found.append(parameter)
    return found
