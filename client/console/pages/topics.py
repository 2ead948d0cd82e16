"""Topics: the list, and the creation of one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from ....protocol.auth.permissions import ADMIN, TOPIC
from ....protocol.commands import QUEUES_MAX, QueueStats
from ....protocol.display import escape, iso, show_bytes
from ....protocol.errors import FlintError, TopicNotExist
from ...core.consume.pages import MessageSummary, TopicPage
from ...operator.display import is_called, is_own, real_name, shown_name
from ..failures import Refused
from ..render import columns_of
from ..sampler import all_topics
from ..visit import Visit, check_typed, chosen, whole_number

ROWS_MAX = 50
RETENTION_HOURS_MAX = 1_000_000
QUEUE_COLUMNS = columns_of(QueueStats, "queue min_offset max_offset count last_stored_at")
ORDERS = {"name": "name", "rate": "messages in per second", "messages": "messages", "last": "last stored"}


async def topic_list(visit: Visit) -> Response:
    """Return the list of topics: two requests for up to a thousand topics."""
    wanted, show_system = visit.text("q"), visit.text("system") == "1"
    order = chosen(ORDERS, visit.text("sort"))
    sampler = visit.console.sampler(visit.session)
    totals, configs = await asyncio.gather(all_topics(visit.session), sampler.topic_configs(visit.session))
    # A topic is newer than the configurations that are kept.
    if any(row.topic not in configs for row in totals):
        configs = await sampler.topic_configs(visit.session, newest=True)
    sampler.add_topics(totals)
    shown = [
        row
        for row in totals
        if row.topic in configs
        and (show_system or not configs[row.topic].system)
        and (not wanted or is_called(row.topic, wanted))
    ]
    # By name first: each later sort keeps the order before it among equals.
    shown.sort(key=lambda row: row.topic)
    if order == "rate":
        shown.sort(key=lambda row: sampler.last_rate(row.topic) or 0.0, reverse=True)
    elif order == "messages":
        shown.sort(key=lambda row: row.messages, reverse=True)
    elif order == "last":
        shown.sort(key=lambda row: row.last_stored_ms, reverse=True)
    # Those of the broker and of groups last.
    shown.sort(key=lambda row: configs[row.topic].system or is_own(row.topic))
    return await visit.page(
        "topics.html",
        configs=configs,
        sampler=sampler,
        hidden=sum(1 for row in totals if row.topic in configs and configs[row.topic].system),
        **visit.part_of(shown, ROWS_MAX),
        wanted=wanted,
        show_system=show_system,
        order=order,
        orders=ORDERS,
        may_create=visit.may(ADMIN, TOPIC, wanted) or visit.may(ADMIN),
    )


async def create(visit: Visit) -> Response:
    visit.check_writable()
    form = await visit.form()
    name = real_name(form.get("topic", "").strip())
    await visit.admin.create_topic(name, whole_number("queues", form.get("queues", ""), 4, 1, QUEUES_MAX))
    visit.console.sampler(visit.session).forget_configs()
    return visit.done(f"topic {shown_name(name)} exists", f"/topics/{quote(name, safe='')}")


# ---- one topic


async def queues(visit: Visit) -> Response:
    topic = visit.path("topic")
    rows = await visit.admin.topic_stats(topic)
    return await visit.page("queues.html", topic=topic, rows=rows, columns=QUEUE_COLUMNS)


async def config(visit: Visit) -> Response:
    """Return the configuration of a topic, with the forms that change and delete it."""
    topic = visit.path("topic")
    found = (await visit.admin.topics(system=True)).get(topic)
    if found is None:
        raise TopicNotExist(f"topic {topic} does not exist, or you have no right on it")
    return await visit.page("topic_config.html", topic=topic, config=found, may_change=visit.may(ADMIN, TOPIC, topic))


async def change(visit: Visit) -> Response:
    """Change a topic: queues can be added, not removed."""
    visit.check_writable()
    topic, form = visit.path("topic"), await visit.form()
    before = (await visit.admin.topics(system=True)).get(topic)
    if before is None:
        raise TopicNotExist(f"topic {topic} does not exist")
    # Only what the form changes is sent on: each value has a default that would otherwise replace the topic's own.
    await visit.admin.create_topic(
        topic,
        read_queues=whole_number("queues", form.get("queues", ""), before.read_queues, 1, QUEUES_MAX),
        write_queues=whole_number("queues", form.get("queues", ""), before.write_queues, 1, QUEUES_MAX),
        perm=4 * bool(form.get("read")) + 2 * bool(form.get("write")),
        order=before.order,
        retention_hours=whole_number("hours", form.get("hours", ""), before.retention_hours, -1, RETENTION_HOURS_MAX),
        retention_bytes=whole_number("bytes", form.get("bytes", ""), before.retention_bytes, 0, 2**62),
    )
    visit.console.sampler(visit.session).forget_configs()
    return visit.done(f"topic {shown_name(topic)} is changed", f"/topics/{quote(topic, safe='')}/config")


async def delete(visit: Visit) -> Response:
    """Delete a topic whose name was typed."""
    visit.check_writable()
    topic, form = visit.path("topic"), await visit.form()
    check_typed(form, topic, "the topic")
    await visit.admin.delete_topic(topic)
    visit.console.sampler(visit.session).forget_configs()
    return visit.done(f"topic {shown_name(topic)} is deleted", "/topics")


# ---- Live view of a topic: new messages as they arrive, as server-sent events.
#
# A stream asks for the newest page four times a second at most, whatever the topic's rate, and less often
# beside many others. It shows what fits, and counts the rest exactly, so a topic with a hundred thousand
# messages a second costs the broker and the browser no more than a quiet one.

TICK_SECONDS = 0.25
QUIET_TICK_SECONDS = 1.0
"""Seconds between two looks at a topic that has had nothing for a while."""
LOOKS_PER_SECOND_MAX = 10
"""Maximum number of looks of all streams of the console: each takes the broker a millisecond, for which other clients
wait."""
KEEP_ALIVE_SECONDS = 15.0
"""Seconds after which a comment is sent, so that a proxy does not close the connection."""
LIFE_SECONDS = 15 * 60.0
"""Life of a stream. The page opens another one only if it was used meanwhile."""
STREAMS_PER_USER_MAX = 4
STREAMS_MAX = 50
SLOW_TICKS = 4
"""Number of looks after which a search by tag or filter that cannot keep up jumps to the newest message."""


async def live_page(visit: Visit) -> Response:
    topic = visit.path("topic")
    if visit.failure is not None:
        return await visit.page("live.html", topic=topic, page=None)
    queue = visit.number("queue", -1, 0, 2**31 - 1)
    # A topic that may not be read fails here, and so does a wrong filter.
    page = await visit.consumer.browse(
        topic,
        queue if queue >= 0 else None,
        count=1,
        body_bytes=0,
        tags=visit.text("tag") or None,
        filter=visit.text("filter") or None,
        scan_max=1,
    )
    return await visit.page("live.html", topic=topic, page=page)


async def live_stream(visit: Visit) -> Response:
    """Return the stream of new messages of a topic. Raises ``Refused`` if the user or the console has too many."""
    visit.check_own_site()
    streams = visit.console.streams
    mine = streams.get(visit.session.user, 0)
    if mine >= STREAMS_PER_USER_MAX or sum(streams.values()) >= STREAMS_MAX:
        raise Refused(429, f"there are {mine} live views of this user; close one, or wait")
    tail = _Tail(visit, visit.number("queue", -1, 0, 2**31 - 1), visit.text("tag"), visit.text("filter"))
    first = await tail.begin()
    return StreamingResponse(
        _counted(visit, tail, first), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
    )


def tick_seconds(streams: int, quiet: bool) -> float:
    """Return the seconds between two looks of a stream, one of ``streams``. ``quiet``: nothing has come for a while."""
    return max(QUIET_TICK_SECONDS if quiet else TICK_SECONDS, streams / LOOKS_PER_SECOND_MAX)


async def _counted(visit: Visit, tail: _Tail, first: str) -> AsyncIterator[str]:
    """Yield the events of a stream while counting it as one of its user's."""
    streams, user = visit.console.streams, visit.session.user
    streams[user] = streams.get(user, 0) + 1
    try:
        yield first
        async for event in tail.events():
            yield event
    finally:
        streams[user] -= 1
        if not streams[user]:
            del streams[user]


@dataclass(slots=True)
class _Tail:
    """The state of one stream. ``after``: physical offset from which messages are new; ``seen``: number of messages
    that were shown, counted as skipped, or there before; ``looked_at``: time of the last look."""

    visit: Visit
    queue: int
    tag: str
    condition: str
    after: int = 0
    seen: int = 0
    slow: int = 0
    looked_at: float = 0.0

    @property
    def selects(self) -> bool:
        return bool(self.tag or self.condition)

    async def _newest_page(self) -> TopicPage:
        """Return the newest messages. The live views of one user look together: this takes a page that another one has
        got since this one's last look."""
        looks = self.visit.console.looks
        key = (self.visit.session.user, self.visit.path("topic"), self.queue)
        kept = looks.get(key)
        if kept is None or kept[0] <= self.looked_at:
            kept = time.monotonic(), await self._browse(newest_first=True)
            # Put at the end, so that the first ones are the oldest looks.
            looks.pop(key, None)
            looks[key] = kept
            while len(looks) > STREAMS_MAX:
                looks.pop(next(iter(looks)))
        self.looked_at = time.monotonic()
        return kept[1]

    async def _browse(self, *, newest_first: bool, physical: int | None = None, count: int = ROWS_MAX) -> TopicPage:
        return await self.visit.consumer.browse(
            self.visit.path("topic"),
            self.queue if self.queue >= 0 else None,
            newest_first=newest_first,
            physical=physical,
            count=count,
            body_bytes=0 if self.visit.console.options.no_bodies else 512,
            tags=self.tag or None,
            filter=self.condition or None,
            scan_max=20_000,
        )

    async def begin(self) -> str:
        """Return the first event: the newest messages so far."""
        page = await self._browse(newest_first=True, count=20)
        # With a tag or a filter, the newest message may have come after the newest match.
        newest = page if not self.selects else await self._newest()
        self.after = newest[0].physical_offset + 1 if newest else 0
        self.seen, self.looked_at = page.max_offsets, time.monotonic()
        return self._event([row for row in page if row.physical_offset < self.after][::-1], 0)

    async def _newest(self) -> TopicPage:
        return await self.visit.consumer.browse(
            self.visit.path("topic"), self.queue if self.queue >= 0 else None, count=1, body_bytes=0
        )

    async def events(self) -> AsyncIterator[str]:
        """Yield the events until the stream, the session or the console ends."""
        console, session = self.visit.console, self.visit.session
        began = spoke = arrived = time.monotonic()
        while not console.ending.is_set() and not session.is_over:
            quiet = time.monotonic() - arrived > 5 * QUIET_TICK_SECONDS
            # Not a sleep, which would hold up the end of the console.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(tick_seconds(sum(console.streams.values()), quiet)):
                    await console.ending.wait()
            now = time.monotonic()
            if now - began > LIFE_SECONDS:
                yield "event: rest\ndata: {}\n\n"
                return
            try:
                rows, skipped = await self._news()
            except FlintError as error:
                yield f"event: trouble\ndata: {json.dumps(escape(str(error)))}\n\n"
                return
            if rows or skipped:
                arrived = spoke = now
                yield self._event(rows, skipped)
            elif now - spoke > KEEP_ALIVE_SECONDS:
                spoke = now
                yield ": still here\n\n"

    async def _news(self) -> tuple[list[MessageSummary], int]:
        """Return the new messages to show, oldest first, and the number of those that are skipped."""
        if self.selects:
            return await self._selected_news()
        page = await self._newest_page()
        rows = [row for row in page if row.physical_offset >= self.after]
        arrived, self.seen = page.max_offsets - self.seen, page.max_offsets
        if rows:
            self.after = rows[0].physical_offset + 1
        return rows[::-1], max(0, arrived - len(rows))

    async def _selected_news(self) -> tuple[list[MessageSummary], int]:
        """Return the next matches. A search that does not keep up with the topic jumps to its newest message."""
        page = await self._browse(newest_first=False, physical=self.after)
        self.seen += page.examined
        # At the end of the topic, the search continues after the last message that it has examined.
        if page.examined:
            self.after = page.reached_physical + 1 if page.next_physical is None else page.next_physical
        self.slow = 0 if page.next_physical is None else self.slow + 1
        skipped = 0
        if self.slow > SLOW_TICKS:
            newest = await self._newest()
            skipped = max(0, newest.max_offsets - self.seen)
            self.slow, self.seen, self.after = 0, newest.max_offsets, newest[0].physical_offset + 1 if newest else 0
        return list(page), skipped

    def _event(self, rows: list[MessageSummary], skipped: int) -> str:
        topic = quote(self.visit.path("topic"), safe="")
        shown = [
            {
                "at": iso(row.stored_at),
                "place": f"{row.queue}:{row.queue_offset:,}",
                "href": f"/topics/{topic}/{row.queue}/{row.queue_offset}",
                "keys": escape(" ".join(row.keys)),
                "tag": escape(row.tags or ""),
                "size": show_bytes(row.body_bytes),
                "text": self.visit.preview(row),
            }
            for row in rows
        ]
        return f"data: {json.dumps({'rows': shown, 'skipped': skipped}, ensure_ascii=False)}\n\n"
