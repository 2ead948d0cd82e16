"""QUERY_BY_KEY, VIEW_MESSAGE_BY_ID and BROWSE_MESSAGES: find messages through the index, or show a page of a topic as a
person reads it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgpack

from ...protocol.auth.permissions import QUERY, TOPIC
from ...protocol.commands import (
    BrowseMessagesAnswer,
    BrowseMessagesRequest,
    QueryByKeyAnswer,
    QueryByKeyRequest,
    ViewMessageAnswer,
    ViewMessageByIdRequest,
)
from ...protocol.errors import BrokerFailure, InvalidParameter
from ...protocol.fields import decode_fields
from ...protocol.frames import HEADER_BYTES_MAX
from ..filters import compile_filter
from ..store import KeySearch, WouldBlock
from ..store.read.pages import PageBounds, PageSelection
from .pull import parse_tags

if TYPE_CHECKING:
    from ..config import LimitsSection
    from ..requests.request import Request
    from ..store import MessageStore, QueryResult
    from ..store.read.pages import MessagePage


# ---- QUERY_BY_KEY and VIEW_MESSAGE_BY_ID: find messages through the index.


async def query_by_key(request: Request, store: MessageStore, limits: LimitsSection) -> None:
    """Return records that have a key, newest first, one page at a time."""
    params = decode_fields(QueryByKeyRequest, request.frame.fields)
    if params.begin_ms > params.end_ms:
        raise InvalidParameter(f"begin_ms {params.begin_ms} is after end_ms {params.end_ms}")
    store.topics.check_has_messages(params.topic)
    max_count = params.max_count
    await request.dispatched()
    while True:
        search = KeySearch(params.topic, params.key, params.begin_ms, params.end_ms, max_count, params.cursor)
        found = await request.read(partial(_query, store, search))
        if not _too_large(found, limits.frame_bytes_max) or found.count <= 1:
            break
        # How many records fit is known only after they are read.
        max_count = found.count // 2
    _check_size(found, limits.frame_bytes_max)
    answer = QueryByKeyAnswer(found.count, found.cursor, found.index_behind_bytes, found.damaged)
    request.respond(answer, found.body)


def _query(store: MessageStore, search: KeySearch, hot: bool) -> QueryResult:
    return store.query(search, hot=hot)


async def view_message_by_id(request: Request, store: MessageStore, limits: LimitsSection) -> None:
    """Return the record with an offset id or a unique key."""
    params = decode_fields(ViewMessageByIdRequest, request.frame.fields)
    if params.topic:
        store.topics.check_has_messages(params.topic)

    may_show = shown_to(request)
    await request.dispatched()
    found = await request.read(lambda hot: store.view(params.id, params.topic, hot, may_show))
    _check_size(found, limits.frame_bytes_max)
    request.respond(ViewMessageAnswer(count=found.count), found.body)


def shown_to(request: Request) -> Callable[[str], bool] | None:
    """Return a predicate: may the user find messages of this topic? Others appear not to exist. For any thread.

    None: all messages, because there are no users.
    """
    if request.peer.access is None:
        return None
    permissions = request.peer.access.permissions
    return lambda topic: permissions.allows(QUERY, TOPIC, topic)


def _too_large(found: QueryResult, frame_bytes_max: int) -> bool:
    return len(found.body) + HEADER_BYTES_MAX > frame_bytes_max


def _check_size(found: QueryResult, frame_bytes_max: int) -> None:
    if _too_large(found, frame_bytes_max):
        raise BrokerFailure(
            f"the record is too large for a response: {len(found.body)} bytes; raise limits.frame_bytes_max, "
            f"which is {frame_bytes_max}"
        )


# ---- BROWSE_MESSAGES: show a page of a topic, as a person reads it.


async def browse_messages(request: Request, store: MessageStore) -> None:
    """Return a page of a topic's messages. A reader thread makes it, because it may read many queues."""
    params = decode_fields(BrowseMessagesRequest, request.frame.fields)
    given = [name for name in ("physical", "since_ms", "queue_offset") if getattr(params, name) >= 0]
    if len(given) > 1:
        raise InvalidParameter(f"{given[0]} and {given[1]} both say where the page begins; give one of them")
    if params.queue_offset >= 0 and params.queue < 0:
        raise InvalidParameter("queue_offset needs the queue that it belongs to")
    store.topics.check_has_messages(params.topic)
    bounds = PageBounds(params.backward, params.physical, params.since_ms, params.queue_offset)

    def read(hot: bool) -> MessagePage:
        if hot:
            raise WouldBlock
        config = store.topics.existing(params.topic)
        queues = range(config.queues) if params.queue < 0 else (params.queue,)
        # Parsing takes up to 2 ms, so the reader thread does that too.
        selection = PageSelection(
            params.count,
            params.body_bytes,
            parse_tags(params.tags) if params.tags else None,
            compile_filter(params.filter) if params.filter else None,
            params.scan_max,
        )
        return store.pages.page(params.topic, queues, bounds, selection)

    await request.dispatched()
    page = await request.read(read)
    answer = BrowseMessagesAnswer(
        len(page.rows),
        page.next_physical,
        page.examined,
        page.reached_ms,
        page.reached_physical,
        page.lost,
        page.messages,
        page.max_offsets,
    )
    request.respond(answer, msgpack.packb(page.rows))
