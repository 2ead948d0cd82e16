"""BROWSE_MESSAGES: show a page of a topic, as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from ...protocol.commands import BrowseMessagesAnswer, BrowseMessagesRequest
from ...protocol.errors import InvalidParameter
from ...protocol.fields import decode_fields
from ..filters import compile_filter
from ..store import WouldBlock
from ..store.read.pages import PageBounds, PageSelection
from .pull import parse_tags
from .readable import check_has_messages

if TYPE_CHECKING:
    from ..requests.request import Request
    from ..store import MessageStore
    from ..store.read.pages import MessagePage


def browse_messages(request: Request, store: MessageStore) -> None:
    """Return a page of a topic's messages. A reader thread makes it, because it may read many queues."""
    params = decode_fields(BrowseMessagesRequest, request.frame.fields)
    given = [name for name in ("physical", "since_ms", "queue_offset") if getattr(params, name) >= 0]
    if len(given) > 1:
        raise InvalidParameter(f"{given[0]} and {given[1]} both say where the page begins; give one of them")
    if params.queue_offset >= 0 and params.queue < 0:
        raise InvalidParameter("queue_offset needs the queue that it belongs to")
    check_has_messages(store.topics, params.topic)
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

    def done(page: MessagePage) -> None:
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

    request.after_dispatch(lambda: request.read(read, done))
