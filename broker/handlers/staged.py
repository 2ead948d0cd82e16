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
from ..delivery.staged.notes import STAGED_CONFIG, TOPICS
from ..delivery.staged.table import Stage
from ..store import Appended, ProduceBatch, common_properties
from .acknowledgement import acknowledge
from .context import Peer
from .msgpack_body import ArrayBody

FLUSHES = frozenset({"", "sync", "async"})


def check_staged(peer: Peer, request: ProduceRequest, is_half: bool) -> None:
    """Raise ``InvalidParameter`` if staged messages are half messages or delayed too, ``NoPermission`` if the stage
    has messages for topics that the user may not publish to."""
    if is_half or delay_of(request.common) is not None:
        kind = "half messages" if is_half else "delayed"
        raise InvalidParameter(f"staged messages cannot be {kind}: leave out prepare, or the property")
    _check_name(request.prepare)
    if (may_end := _may_end(peer)) is not None:
        _check_may_end(peer, request.prepare, may_end)


def append_staged(peer: Peer, frame: Frame, request: ProduceRequest, queue: int) -> None:
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
    broker.staged.check_new(request.prepare)
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
        appended.append(broker.store.append(STAGED_CONFIG, 0, batch))
        return appended[0].queue_offset

    broker.staged.stage_messages(request.prepare, request.topic, queue, request.count, append)
    acknowledge(peer, frame, request, queue, PREPARED_TOPIC, 0, appended[0], flush=False)


def commit_staged(peer: Peer, frame: Frame) -> None:
    """Commit the messages of stages; respond once all of them are in their topics."""
    request = decode_fields(CommitPreparedRequest, frame.fields)
    if request.flush not in FLUSHES:
        raise InvalidParameter(f"flush must be sync, async or empty, not {request.flush!r}")
    wanted = _wanted(request, frame.body)
    may_end = _may_end(peer)
    if may_end is not None:
        for name, _ in wanted:
            _check_may_end(peer, name, may_end)
    result = peer.broker.staged.begin_commit(
        request.series, request.number, wanted, request.drop, sync=request.flush == "sync", may_drop=may_end
    )
    answer = CommitPreparedAnswer(already=result.already, messages=result.messages)
    if result.pending is None:
        peer.answer(frame, answer)
    else:
        result.pending.when_finished(peer.later(frame, lambda: peer.answer(frame, answer)))


def _may_end(peer: Peer) -> Callable[[Stage], bool] | None:
    """Return a predicate: may the user, who needs to publish to all of its topics, end this stage? None: any."""
    access = peer.access
    if access is None:
        return None
    return lambda stage: all(access.allows(PUBLISH, TOPIC, topic) for topic, _ in stage.targets)


def _check_may_end(peer: Peer, name: str, may_end: Callable[[Stage], bool]) -> None:
    stage = peer.broker.staged.table.stages.get(name)
    if stage is not None and not may_end(stage):
        assert peer.access is not None
        raise NoPermission(
            f"user {peer.access.name} has no permission to publish to all topics of stage {name}; nothing was done"
        )


def abort_staged(peer: Peer, frame: Frame) -> None:
    """Drop the messages of stages; respond once that is stored."""
    request = decode_fields(AbortPreparedRequest, frame.fields)
    count, end_offset = peer.broker.staged.abort_stages(request.drop, _may_end(peer))
    done = peer.later(frame, lambda: peer.answer(frame, AbortPreparedAnswer(count=count)))
    peer.broker.writer.when_acknowledged(end_offset, done)


def get_staged(peer: Peer, frame: Frame) -> None:
    """Return the stages that are not committed, and the commits in progress."""
    request = decode_fields(GetPreparedRequest, frame.fields)
    table = peer.broker.staged.table
    sees_all = peer.access is None or peer.access.sees_all
    may_end = None if sees_all else _may_end(peer)
    names = table.names_with_prefix(request.prefix)
    if may_end is not None:
        names = [name for name in names if may_end(table.stages[name])]
    stages = [
        {
            "attempt": name,
            "messages": (stage := table.stages[name]).messages,
            "topics": sorted({topic for topic, _ in stage.targets}),
            "active_ms": stage.active_ms,
        }
        for name in names[: request.max_count]
    ]
    copying = [
        {"series": each.scope, "number": each.sequence, "messages": each.messages, "copied": each.position}
        for each in (table.commits.values() if sees_all else ())
    ]
    answer = PreparedAnswer(count=len(stages), attempts=len(table.stages) if sees_all else len(names))
    peer.answer(frame, answer, msgpack.packb({"attempts": stages, "copying": copying}))


def _wanted(request: CommitPreparedRequest, body: memoryview) -> list[tuple[str, int]]:
    """Return the stages that the body names, each with its number of messages."""
    wanted: dict[str, int] = {}
    if not len(body) and not request.count:
        return []
    rows = ArrayBody(body, f"one msgpack array of {request.count} rows [stage, messages], as count says")
    rows.row(request.count)
    for _ in range(request.count):
        rows.row(2)
        name = _check_name(rows.text())
        if name in wanted:
            raise InvalidParameter(f"stage {name!r} is in the body twice")
        wanted[name] = rows.integer()
    rows.end()
    return list(wanted.items())


def _check_name(name: str) -> str:
    if not 0 < len(name) <= PREPARED_NAME_CHARS_MAX or not name.isascii() or not name.isprintable():
        raise InvalidParameter(
            f"a stage's name must be 1 to {PREPARED_NAME_CHARS_MAX} printable ASCII characters, got {name[:40]!r}"
        )
    return name
