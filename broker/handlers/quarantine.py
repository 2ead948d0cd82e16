"""GET_QUARANTINE: the damaged ranges of the CommitLog, and the messages that are lost in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgpack

from ...protocol.commands import QUARANTINE_LOST_MAX, GetQuarantineRequest, QuarantineAnswer
from ...protocol.fields import decode_fields
from ..store import WouldBlock

if TYPE_CHECKING:
    from ..requests.request import Request
    from ..store import MessageStore
    from ..store.damage.quarantine import QuarantinedRange


def get_quarantine(request: Request, store: MessageStore) -> None:
    """Return the next entries of the quarantine, by physical offset and by the time at which they were found."""
    params = decode_fields(GetQuarantineRequest, request.frame.fields)
    quarantine = store.quarantine

    def read(hot: bool) -> tuple[int, bytes]:
        if hot and quarantine:
            raise WouldBlock  # a page may name tens of thousands of queues: too much for a turn of the loop
        entries = quarantine.page(params.after, params.after_found_ms, params.max_count)
        return len(entries), _packed(entries)

    def done(page: tuple[int, bytes]) -> None:
        count, body = page
        request.respond(QuarantineAnswer(count=count), body)

    request.read(read, done)


def _packed(entries: Iterable[QuarantinedRange]) -> bytes:
    rows: list[tuple[Any, ...]] = [
        (
            each.physical_offset,
            each.bytes,
            each.reason,
            each.found_ms,
            each.store_ms,
            each.file,
            sum(lost.messages for lost in each.lost),
            max(len(each.lost) - QUARANTINE_LOST_MAX, 0),
            each.lost[:QUARANTINE_LOST_MAX],
        )
        for each in entries
    ]
    packed: bytes = msgpack.packb(rows)
    return packed
