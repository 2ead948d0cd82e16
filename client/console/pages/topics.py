"""Topics: the list, and the creation of one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import quote

from starlette.responses import Response

from ....protocol.auth.permissions import ADMIN, TOPIC
from ....protocol.commands import QUEUES_MAX
from ....protocol.errors import TopicNotExist
from ...core.topics import TopicInfo, TopicTotals
from ...operator.names import is_called, is_own, real_name, shown_name
from ..favourites import favourites_of, packed_favourites, set_favourites
from ..sampler import all_topics
from ..sparkline import sparkline_points
from ..visit import Visit, check_typed, chosen, whole_number

ROWS_MAX = 50
RETENTION_HOURS_MAX = 1_000_000
ORDERS = {"name": "name", "rate": "messages in per second", "messages": "messages", "last": "last stored"}


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One line of the list."""

    totals: TopicTotals
    config: TopicInfo
    rate: float | None
    points: str


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
    favourites = favourites_of(visit.request)
    # Those of the broker and of groups last.
    shown.sort(key=lambda row: (row.topic not in favourites, configs[row.topic].system or is_own(row.topic)))
    first = visit.number("first", 0, 0, max(0, len(shown) - 1))
    rows = [
        TopicRow(row, configs[row.topic], sampler.last_rate(row.topic), sparkline_points(sampler.rates(row.topic)))
        for row in shown[first : first + ROWS_MAX]
    ]
    return await visit.page(
        "topics.html",
        rows=rows,
        favourites=favourites,
        total=len(shown),
        hidden=sum(1 for row in totals if row.topic in configs and configs[row.topic].system),
        first=first,
        rows_max=ROWS_MAX,
        wanted=wanted,
        show_system=show_system,
        order=order,
        orders=ORDERS,
        may_create=visit.may(ADMIN, TOPIC, wanted) or visit.may(ADMIN),
    )


async def create(visit: Visit) -> Response:
    """Create a topic from the form."""
    visit.check_writable()
    form = await visit.form()
    name = real_name(form.get("topic", "").strip())
    await visit.admin.create_topic(name, whole_number("queues", form.get("queues", ""), 4, 1, QUEUES_MAX))
    visit.console.sampler(visit.session).forget_configs()
    return visit.done(f"topic {shown_name(name)} exists", f"/topics/{quote(name, safe='')}")


# ---- one topic


async def favourite(visit: Visit) -> Response:
    """Make a topic a favourite of this browser, or no longer."""
    topic, form = visit.path("topic"), await visit.form()
    others = [each for each in favourites_of(visit.request) if each != topic]
    is_added = form.get("on") == "1"
    packed = packed_favourites([*others, topic] if is_added else others)
    outcome = "is a favourite, at the top of the list of topics" if is_added else "is not a favourite any more"
    response = visit.done(f"topic {shown_name(topic)} {outcome}", f"/topics/{quote(topic, safe='')}")
    set_favourites(response, packed, is_encrypted=visit.console.options.is_encrypted)
    return response


async def queues(visit: Visit) -> Response:
    """Return the offsets of each queue of a topic."""
    topic = visit.path("topic")
    return await visit.page("queues.html", topic=topic, rows=await visit.admin.topic_stats(topic))


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
