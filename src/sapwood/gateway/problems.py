"""Errors as problem details (RFC 9457), and which of the cluster's errors is which of HTTP's."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from sapwood.client import ClientClosed, ErrorCode, KafkaError

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1

TITLES = {
    400: "The request isn't valid",
    401: "Say who you are",
    403: "Not allowed",
    404: "Not found",
    405: "No such method here",
    408: "The request took too long to arrive",
    409: "That is not possible as things are",
    410: "Messages are gone",
    413: "Too large",
    415: "Send JSON, as application/json",
    431: "The request's head is too large",
    500: "This is a defect in the gateway",
    503: "Try again in a moment",
}


class Problem(msgspec.Struct, omit_defaults=True):
    """What went wrong, and what to do about it."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    code: str | None = None
    """Kafka's name for the error, if it has one."""


class Refused(Exception):
    """An answer other than success, in HTTP's terms."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.problem = Problem(TITLES[status], status, detail, code=code)
        self.headers = dict(headers or {})
        if status == 503:
            self.headers.setdefault("Retry-After", str(RETRY_AFTER_S))

    def response(self) -> Response:
        return Response(
            msgspec.json.encode(self.problem), self.status, self.headers, media_type=MEDIA_TYPE
        )


_STATUS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.UNKNOWN_TOPIC_ID: 404,
    ErrorCode.RESOURCE_NOT_FOUND: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.POLICY_VIOLATION: 409,
    ErrorCode.NON_EMPTY_GROUP: 409,
    ErrorCode.UNKNOWN_MEMBER_ID: 409,
    ErrorCode.STALE_MEMBER_EPOCH: 409,
    ErrorCode.FENCED_MEMBER_EPOCH: 409,
    ErrorCode.ILLEGAL_GENERATION: 409,
    ErrorCode.INVALID_PRODUCER_EPOCH: 409,
    ErrorCode.OFFSET_OUT_OF_RANGE: 410,
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.RECORD_LIST_TOO_LARGE: 413,
    ErrorCode.SASL_AUTHENTICATION_FAILED: 403,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.INVALID_TOPIC_EXCEPTION: 400,
    ErrorCode.INVALID_PARTITIONS: 400,
    ErrorCode.INVALID_REPLICATION_FACTOR: 400,
    ErrorCode.INVALID_CONFIG: 400,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.INVALID_RECORD: 400,
    ErrorCode.INVALID_TIMESTAMP: 400,
    ErrorCode.INVALID_GROUP_ID: 400,
    ErrorCode.INVALID_REGISTRATION: 400,
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: 409,
    ErrorCode.BROKER_NOT_AVAILABLE: 503,
}


def refusal_of(error: KafkaError) -> Refused:
    """What can pass is retryable; an error that nobody foresaw is ours to mend."""
    status = _STATUS.get(error.code) or (503 if error.code.retriable else 500)
    return Refused(status, error.message or error.code.name, code=error.code.name)


def out_of_time() -> Refused:
    return Refused(
        503,
        "The cluster didn't answer in time. It may still do what was asked: look, or repeat with "
        "the same id.",
        code=ErrorCode.REQUEST_TIMED_OUT.name,
    )


def closing(_error: ClientClosed) -> Refused:
    return Refused(503, "This gateway is stopping: ask another one")
