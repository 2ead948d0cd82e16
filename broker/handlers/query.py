"""QUERY_BY_KEY and VIEW_MESSAGE_BY_ID: find messages through the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...protocol.auth.permissions import QUERY, TOPIC
from ...protocol.commands import QueryByKeyAnswer, QueryByKeyRequest, ViewMessageAnswer, ViewMessageByIdRequest
from ...protocol.errors import BrokerFailure, InvalidParameter
from ...protocol.fields import decode_fields
from ...protocol.frames import HEADER_BYTES_MAX
from ..store import KeySearch
from .readable import check_has_messages

if TYPE_CHECKING:
    from ..requests.request import Request
    from ..store import QueryResult


def query_by_key(request: Request) -> None:
    """Return records that have a key, newest first, one page at a time."""
    params = decode_fields(QueryByKeyRequest, request.frame.fields)
    if params.begin_ms > params.end_ms:
        raise InvalidParameter(f"begin_ms {params.begin_ms} is after end_ms {params.end_ms}")
    check_has_messages(request.broker.store.topics, params.topic)
    request.after_dispatch(_Query(request, params).read)


class _Query:
    """One page of a query; it is read again with fewer records if they are too large for one response."""

    __slots__ = ("max_count", "params", "request")

    def __init__(self, request: Request, params: QueryByKeyRequest) -> None:
        self.request = request
        self.params = params
        self.max_count = params.max_count

    def read(self) -> None:
        self.request.read(self._read, self._found)

    def _read(self, hot: bool) -> QueryResult:
        params = self.params
        search = KeySearch(params.topic, params.key, params.begin_ms, params.end_ms, self.max_count, params.cursor)
        return self.request.broker.store.query(search, hot=hot)

    def _found(self, found: QueryResult) -> None:
        if _too_large(self.request, found) and found.count > 1:
            self.max_count = found.count // 2
            self.read()
            return
        _check_size(self.request, found)
        answer = QueryByKeyAnswer(found.count, found.cursor, found.index_behind_bytes, found.damaged)
        self.request.respond(answer, found.body)


def view_message_by_id(request: Request) -> None:
    """Return the record with an offset id or a unique key."""
    params = decode_fields(ViewMessageByIdRequest, request.frame.fields)
    if params.topic:
        check_has_messages(request.broker.store.topics, params.topic)

    def found(found: QueryResult) -> None:
        _check_size(request, found)
        request.respond(ViewMessageAnswer(count=found.count), found.body)

    store = request.broker.store
    may_show = shown_to(request)
    request.after_dispatch(lambda: request.read(lambda hot: store.view(params.id, params.topic, hot, may_show), found))


def shown_to(request: Request) -> Callable[[str], bool] | None:
    """Return a predicate: may the user find messages of this topic? Others appear not to exist. For any thread.

    None: all messages, because there are no users.
    """
    if request.peer.access is None:
        return None
    permissions = request.peer.access.permissions
    return lambda topic: permissions.allows(QUERY, TOPIC, topic)


def _too_large(request: Request, found: QueryResult) -> bool:
    return len(found.body) + HEADER_BYTES_MAX > request.broker.limits.frame_bytes_max


def _check_size(request: Request, found: QueryResult) -> None:
    if _too_large(request, found):
        raise BrokerFailure(
            f"the record is too large for a response: {len(found.body)} bytes; raise limits.frame_bytes_max, "
            f"which is {request.broker.limits.frame_bytes_max}"
        )
