"""Errors as pages show them: a heading, the reason, and an HTTP status."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.errors import (
    BrokerError,
    ConnectionFailed,
    DelayIllegal,
    FilterIllegal,
    FlintError,
    GroupNotExist,
    InvalidParameter,
    MessageNotFound,
    NoPermission,
    QueueNotExist,
    RequestTimeout,
    SubscriptionIllegal,
    TopicNotExist,
    UserExistsAlready,
    UserNotExist,
)
from ..core.produce.receipts import DeliveryFailed
from ..operator.errors import error_code

_TITLES = {
    400: "The request is not valid",
    403: "Not allowed",
    404: "Not found",
    409: "Changed in the meantime",
    413: "Too large",
    502: "The broker refused",
    503: "The broker cannot be reached",
}


class Refused(Exception):
    """Error: the console does not do that. ``status``: of the HTTP response; the message is for the person."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ShownError:
    """An error for a page. ``code``: the error's stable code, or empty; ``notes``: what to do next."""

    status: int
    title: str
    code: str
    message: str
    notes: tuple[str, ...] = ()


def describe(error: FlintError | Refused) -> ShownError:
    if isinstance(error, Refused):
        return ShownError(error.status, _TITLES.get(error.status, "The request failed"), "", str(error))
    if isinstance(error, DeliveryFailed) and len(set(map(str, error.errors.values()))) == 1:
        error = next(iter(error.errors.values()))
    status = _status(error)
    return ShownError(status, _TITLES[status], error_code(error), str(error), tuple(getattr(error, "__notes__", ())))


def _status(error: FlintError) -> int:
    if isinstance(error, ConnectionFailed | RequestTimeout):
        return 503
    if isinstance(error, NoPermission):
        return 403
    if isinstance(error, TopicNotExist | QueueNotExist | GroupNotExist | MessageNotFound | UserNotExist):
        return 404
    if isinstance(error, DelayIllegal | FilterIllegal | InvalidParameter | SubscriptionIllegal | UserExistsAlready):
        return 400
    return 502 if isinstance(error, BrokerError | DeliveryFailed) else 400
