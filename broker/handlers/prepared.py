"""Staged transactions: PRODUCE frames with ``prepare``, COMMIT_PREPARED, ABORT_PREPARED and GET_PREPARED.

The wire calls a staged transaction *prepared* and a stage *attempt*.
"""

from __future__ import annotations

from collections.abc import Callable

import msgpack

from ...protocol.auth.permissions import PUBLISH, TOPIC
from ...protocol.commands import (
    PREPARED_NAME_CHARS_MAX,
    AbortPreparedAnswer,
    AbortPreparedRequest,
    CommitPreparedAnswer,
    CommitPreparedRequest,
    GetPreparedRequest,
    PreparedAnswer,
    ProduceRequest,
)
from ...protocol.errors import InvalidParameter, NoPermission
from ...protocol.fields import decode_fields
from ...protocol.frames import Frame
from ...protocol.storage.delivery import PREPARED_TOPIC, PROPERTY_REAL_QUEUE, PROPERTY_REAL_TOPIC
from ...protocol.storage.record import encode_properties
from ..delivery.routing import delay_of
from ..delivery.staged.notes import PREPARED_CONFIG, TOPICS
from ..delivery.staged.table import Attempt
from ..store import Appended, ProduceBatch, common_properties
from .acknowledgement import acknowledge
from .context import Peer
from .msgpack_body import ArrayBody

FLUSHES = frozenset({"", "sync", "async"})


def check_prepared(peer: Peer, request: ProduceRequest, is_half: bool) -> None:
    """Raise ``InvalidParameter`` if staged messages are half messages or delayed too, ``NoPermission`` if the attempt
    has messages for topics that the user may not publish to."""
    if is_half or delay_of(request.common) is not None:
        kind = "half messages" if is_half else "delayed"
        raise InvalidParameter(f"prepared messages cannot be {kind}: leave out prepare, or the property")
    _check_name(request.prepare)
    if (may_end := _may_end(peer)) is not None:
        _check_may_end(peer, request.prepare, may_end)


def append_prepared(peer: Peer, frame: Frame, request: ProduceRequest, queue: int) -> None:
    """Append the frame's messages to PREPARED_TOPIC, all or none. ``queue``: the queue of their topic for the commit.

    They are acknowledged once they are written; the commit flushes them. If PREPARED_TOPIC has to be created first, the
    frame is handled again afterwards.
    """
    broker = peer.broker
    if any(
        broker.store.topics.get(topic.name) is None or topic.name in broker.topic_changes.pending for topic in TOPICS
    ):
        peer.suspend()
        broker.writer.with_topics(TOPICS, lambda error: peer.resume(frame, error))
        return
    broker.prepared.check_new(request.prepare)
    real = {PROPERTY_REAL_TOPIC: request.topic, PROPERTY_REAL_QUEUE: str(queue)}
    batch = ProduceBatch(
        frame.buffer,
        frame.body_at,
        frame.body_end,
        request.count,
        request.layout,
        common_properties(request.common) + encode_properties(real),
        request.sys_flag,
        request.unique_prefix.encode(),
        request.unique_first,
        request.born_ms,
        peer.born_host,
    )
    appended: list[Appended] = []

    def append() -> int:
        appended.append(broker.store.append(PREPARED_CONFIG, 0, batch))
        return appended[0].queue_offset

    broker.prepared.prepare(request.prepare, request.topic, queue, request.count, append)
    acknowledge(peer, frame, request, queue, PREPARED_TOPIC, 0, appended[0], flush=False)


def commit_prepared(peer: Peer, frame: Frame) -> None:
    """Commit the messages of attempts; respond once all of them are in their topics."""
    request = decode_fields(CommitPreparedRequest, frame.fields)
    if request.flush not in FLUSHES:
        raise InvalidParameter(f"flush must be sync, async or empty, not {request.flush!r}")
    wanted = _wanted(request, frame.body)
    may_end = _may_end(peer)
    if may_end is not None:
        for name, _ in wanted:
            _check_may_end(peer, name, may_end)
    begun = peer.broker.prepared.commit(
        request.series, request.number, wanted, request.drop, sync=request.flush == "sync", may_drop=may_end
    )
    answer = CommitPreparedAnswer(already=begun.already, messages=begun.messages)
    if begun.committing is None:
        peer.answer(frame, answer)
    else:
        begun.committing.when_over(peer.later(frame, lambda: peer.answer(frame, answer)))


def _may_end(peer: Peer) -> Callable[[Attempt], bool] | None:
    """Return a predicate: may the user, who needs to publish to all of its topics, end this attempt? None: any."""
    access = peer.access
    if access is None:
        return None
    return lambda attempt: all(access.allows(PUBLISH, TOPIC, topic) for topic, _ in attempt.targets)


def _check_may_end(peer: Peer, name: str, may_end: Callable[[Attempt], bool]) -> None:
    attempt = peer.broker.prepared.table.attempts.get(name)
    if attempt is not None and not may_end(attempt):
        assert peer.access is not None
        raise NoPermission(
            f"user {peer.access.name} has no permission to publish to all topics of attempt {name}; nothing was done"
        )


def abort_prepared(peer: Peer, frame: Frame) -> None:
    """Drop the messages of attempts; respond once that is stored."""
    request = decode_fields(AbortPreparedRequest, frame.fields)
    count, end_offset = peer.broker.prepared.abort(request.drop, _may_end(peer))
    done = peer.later(frame, lambda: peer.answer(frame, AbortPreparedAnswer(count=count)))
    peer.broker.writer.when_acknowledged(end_offset, done)


def get_prepared(peer: Peer, frame: Frame) -> None:
    """Return the attempts that are not committed, and the commits in progress."""
    request = decode_fields(GetPreparedRequest, frame.fields)
    table = peer.broker.prepared.table
    sees_all = peer.access is None or peer.access.sees_all
    may_end = None if sees_all else _may_end(peer)
    names = table.beginning_with(request.prefix)
    if may_end is not None:
        names = [name for name in names if may_end(table.attempts[name])]
    attempts = [
        {
            "attempt": name,
            "messages": (attempt := table.attempts[name]).messages,
            "topics": sorted({topic for topic, _ in attempt.targets}),
            "active_ms": attempt.active_ms,
        }
        for name in names[: request.max_count]
    ]
    copying = [
        {"series": each.series, "number": each.number, "messages": each.messages, "copied": each.position}
        for each in (table.commits.values() if sees_all else ())
    ]
    answer = PreparedAnswer(count=len(attempts), attempts=len(table.attempts) if sees_all else len(names))
    peer.answer(frame, answer, msgpack.packb({"attempts": attempts, "copying": copying}))


def _wanted(request: CommitPreparedRequest, body: memoryview) -> list[tuple[str, int]]:
    """Return the attempts that the body names, each with its number of messages."""
    wanted: dict[str, int] = {}
    if not len(body) and not request.count:
        return []
    rows = ArrayBody(body, f"one msgpack array of {request.count} rows [attempt, messages], as count says")
    rows.row(request.count)
    for _ in range(request.count):
        rows.row(2)
        attempt = _check_name(rows.text())
        if attempt in wanted:
            raise InvalidParameter(f"attempt {attempt!r} is in the body twice")
        wanted[attempt] = rows.integer()
    rows.end()
    return list(wanted.items())


def _check_name(attempt: str) -> str:
    if not 0 < len(attempt) <= PREPARED_NAME_CHARS_MAX or not attempt.isascii() or not attempt.isprintable():
        raise InvalidParameter(
            f"an attempt's name must be 1 to {PREPARED_NAME_CHARS_MAX} printable ASCII characters, got {attempt[:40]!r}"
        )
    return attempt
