"""Consumer groups: the list, one group, resetting its offsets in three steps, and the groups of a topic."""

from __future__ import annotations

import asyncio
from datetime import datetime
from urllib.parse import quote

from starlette.responses import Response

from ....protocol.auth.permissions import ADMIN, GROUP
from ....protocol.commands import ConsumeStats, GroupMember, GroupQueue
from ....protocol.rows import Display, ValueKind
from ...errors import InvalidArgument
from ...operator.condition import Lag, lag_by_group, lag_in, lag_of, read_rows
from ...operator.display import is_called, is_own, shown_name
from ...operator.positions import offsets_to_commit, parse_position
from ..failures import Refused
from ..render import columns_of
from ..services import OFFSETS_BYTES_MAX
from ..visit import Visit, check_typed, chosen, whole_number

ROWS_MAX = 100
ORDERS = {"lag": "lag", "name": "name", "members": "members", "time": "lag in time"}
TIMED_QUEUES_MAX = 256
"""Maximum number of queues of a topic that a reset to a time looks up: each takes a request."""


QUEUE_COLUMNS = columns_of(
    GroupQueue,
    "topic member committed max_offset ready in_flight lag seconds",
    topic="Topic and queue",
    member=Display("member"),
    max_offset="Next offset",
    seconds=Display("lag in time", ValueKind.SECONDS),
)
MEMBER_COLUMNS = columns_of(
    GroupMember,
    "member address since_seconds heartbeat_seconds queues subscriptions",
    heartbeat_seconds="Last heard",
    subscriptions=Display("reads"),
)


async def group_list(visit: Visit) -> Response:
    """Return the groups: two requests, however many there are."""
    wanted, order = visit.text("q"), chosen(ORDERS, visit.text("sort"))
    infos = await visit.admin.groups()
    lags = lag_by_group(await visit.admin.consume_stats(uncommitted=True, times=True))
    rows = [(info, lag_of(info, lags)) for info in infos if is_called(info.group, wanted)]
    # By name first: a later sort keeps this order among equals.
    rows.sort(key=lambda row: row[0].group)
    if order == "lag":
        rows.sort(key=lambda row: row[1].messages, reverse=True)
    elif order == "members":
        rows.sort(key=lambda row: row[0].members, reverse=True)
    elif order == "time":
        rows.sort(key=lambda row: row[1].seconds or 0.0, reverse=True)
    return await visit.page("groups.html", **visit.part_of(rows, ROWS_MAX), wanted=wanted, order=order)


async def group_detail(visit: Visit) -> Response:
    """Return one group: its members, their queues, and the lag of each queue in messages and in time."""
    group = await visit.admin.group(visit.path("group"))
    return await visit.page(
        "group.html",
        group=group,
        queue_columns=QUEUE_COLUMNS,
        member_columns=MEMBER_COLUMNS,
        lag_in=lag_in,
        lag=sum(map(lag_in, group.queues), Lag(partial=group.partial)),
        deleted=sum(queue.deleted_unread for queue in group.queues),
        topics=sorted({queue.topic for queue in group.queues}, key=lambda name: (is_own(name), name)),
        numbers={member.member: place for place, member in enumerate(group.members, 1)},
        may_change=visit.may(ADMIN, GROUP, group.group),
    )


async def reset_preview(visit: Visit) -> Response:
    """Return the offsets before and after a reset; nothing is changed."""
    group, topic, words = visit.path("group"), visit.given("topic"), visit.given("to")
    if not topic or not words:
        raise InvalidArgument("choose a topic and a position: earliest, latest, an offset, 0=17,1=5, or a time")
    stats = await visit.admin.topic_stats(topic)
    try:
        to = parse_position(words)
    except ValueError as error:
        raise InvalidArgument(f"position: {error}") from None
    if isinstance(to, int):
        raise InvalidArgument(f"{to} counts messages of the topic, not of a queue; use an offset or a time")
    if isinstance(to, datetime):
        if len(stats) > TIMED_QUEUES_MAX:
            raise Refused(400, f"topic {topic} has {len(stats):,} queues; use flintmq group reset for a time")
        found = await asyncio.gather(*(visit.consumer.offset_at(topic, row.queue, to) for row in stats))
        after = {row.queue: offset for row, offset in zip(stats, found, strict=True)}
    else:
        after = offsets_to_commit(to, topic, stats)
    before = await visit.consumer.committed(group, topic)
    rows = [(queue, before.get(queue), offset) for queue, offset in sorted(after.items())]
    return await visit.page("group_reset.html", group=group, topic=topic, words=words, rows=rows)


async def reset(visit: Visit) -> Response:
    """Commit the offsets that the preview showed."""
    visit.check_writable()
    group, form = visit.path("group"), await visit.form(OFFSETS_BYTES_MAX)
    topic = form.get("topic", "")
    offsets = {}
    for pair in form.get("offsets", "").split():
        queue, _, offset = pair.partition("=")
        offsets[whole_number("queue", queue, 0, 0, 2**31 - 1)] = whole_number("offset", offset, 0, 0, 2**63 - 1)
    if not offsets:
        raise InvalidArgument("the form has no offsets; begin again with the position")
    await visit.admin.reset_offsets(group, topic, offsets, force=bool(form.get("force")))
    return visit.done(
        f"group {shown_name(group)} continues topic {shown_name(topic)} at the new offsets",
        f"/groups/{quote(group, safe='')}",
    )


async def delete(visit: Visit) -> Response:
    """Delete a group whose name was typed."""
    visit.check_writable()
    group, form = visit.path("group"), await visit.form()
    check_typed(form, group, "the group")
    await visit.admin.delete_group(group)
    return visit.done(f"group {shown_name(group)} is deleted", "/groups")


async def topic_readers(visit: Visit) -> Response:
    """Return the groups that read a topic, and their lag in it."""
    topic = visit.path("topic")
    by_group: dict[str, list[ConsumeStats]] = {}
    for row in read_rows(await visit.admin.consume_stats(topic=topic, uncommitted=True, times=True)):
        by_group.setdefault(row.group, []).append(row)
    rows = [(group, sum(map(lag_in, found), Lag()), len(found)) for group, found in sorted(by_group.items())]
    return await visit.page("readers.html", topic=topic, rows=rows)
