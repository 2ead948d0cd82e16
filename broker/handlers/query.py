"""QUERY_BY_KEY and VIEW_MESSAGE_BY_ID: find messages through the index."""

from __future__ import annotations

from collections.abc import Callable

from ...protocol.auth.permissions import QUERY, TOPIC, Permissions
from ...protocol.commands import QueryByKeyAnswer, QueryByKeyRequest, ViewMessageAnswer, ViewMessageByIdRequest
from ...protocol.errors import BrokerFailure, InvalidParameter
from ...protocol.fields import decode_fields
from ...protocol.frames import HEADER_BYTES_MAX, Frame
from ..store import QueryResult
from .context import Peer
from .pull import check_has_messages


def query_by_key(peer: Peer, frame: Frame) -> None:
    """Return records that have a key, newest first, one page at a time."""
    request = decode_fields(QueryByKeyRequest, frame.fields)
    if request.begin_ms > request.end_ms:
        raise InvalidParameter(f"begin_ms {request.begin_ms} is after end_ms {request.end_ms}")
    check_has_messages(peer.broker, request.topic)
    peer.after_dispatch(frame, _Query(peer, frame, request).read)


class _Query:
    """One page of a query; it is read again with fewer records if they are too large for one response."""

    __slots__ = ("frame", "max_count", "peer", "request")

    def __init__(self, peer: Peer, frame: Frame, request: QueryByKeyRequest) -> None:
        self.peer = peer
        self.frame = frame
        self.request = request
        self.max_count = request.max_count

    def read(self) -> None:
        self.peer.read(self.frame, self._read, self._found)

    def _read(self, hot: bool) -> QueryResult:
        request = self.request
        return self.peer.broker.store.query(
            request.topic, request.key, request.begin_ms, request.end_ms, self.max_count, request.cursor, hot
        )

    def _found(self, found: QueryResult) -> None:
        if _too_large(self.peer, found) and found.count > 1:
            self.max_count = found.count // 2
            self.read()
            return
        _check_size(self.peer, found)
        answer = QueryByKeyAnswer(found.count, found.cursor, found.index_behind_bytes, found.damaged)
        self.peer.answer(self.frame, answer, found.body)


def view_message_by_id(peer: Peer, frame: Frame) -> None:
    """Return the record with an offset id or a unique key."""
    request = decode_fields(ViewMessageByIdRequest, frame.fields)
    if request.topic:
        check_has_messages(peer.broker, request.topic)

    def found(found: QueryResult) -> None:
        _check_size(peer, found)
        peer.answer(frame, ViewMessageAnswer(count=found.count), found.body)

    store = peer.broker.store
    may_show = _shown_by(peer.access.permissions) if peer.access is not None else None
    peer.after_dispatch(
        frame, lambda: peer.read(frame, lambda hot: store.view(request.id, request.topic, hot, may_show), found)
    )


def _shown_by(permissions: Permissions) -> Callable[[str], bool]:
    """Return a predicate: may the user find messages of this topic? Others appear not to exist. For any thread."""
    return lambda topic: permissions.allows(QUERY, TOPIC, topic)


def _too_large(peer: Peer, found: QueryResult) -> bool:
    return len(found.body) + HEADER_BYTES_MAX > peer.broker.limits.frame_bytes_max


def _check_size(peer: Peer, found: QueryResult) -> None:
    if _too_large(peer, found):
        raise BrokerFailure(
            f"the record is too large for a response: {len(found.body)} bytes; raise limits.frame_bytes_max, "
            f"which is {peer.broker.limits.frame_bytes_max}"
        )
