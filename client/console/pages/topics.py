"""Topics: the list, and the creation of one."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from starlette.responses import Response

from ....protocol.auth.permissions import ADMIN, TOPIC
from ....protocol.commands import QUEUES_MAX
from ...core.topics import TopicInfo, TopicTotals
from ..sampler import all_topics
from ..sparkline import sparkline_points
from ..visit import Visit, chosen, whole_number

ROWS_MAX = 100
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
    wanted, show_system = visit.text("q").lower(), visit.text("system") == "1"
    order = chosen(ORDERS, visit.text("sort"))
    sampler = visit.console.sampler(visit.session)
    totals = await all_topics(visit.session)
    sampler.add_topics(totals)
    configs = await visit.admin.topics(system=True)
    shown = [
        row
        for row in totals
        if row.topic in configs
        and (show_system or not configs[row.topic].system)
        and (not wanted or wanted in row.topic.lower())
    ]
    last_rates = {row.topic: (sampler.rates(row.topic) or [None])[-1] for row in shown}
    shown.sort(key=lambda row: row.topic)
    if order == "rate":
        shown.sort(key=lambda row: last_rates[row.topic] or 0.0, reverse=True)
    elif order == "messages":
        shown.sort(key=lambda row: row.messages, reverse=True)
    elif order == "last":
        shown.sort(key=lambda row: row.last_stored_ms, reverse=True)
    first = visit.number("first", 0, 0, max(0, len(shown) - 1))
    rows = [
        TopicRow(row, configs[row.topic], last_rates[row.topic], sparkline_points(sampler.rates(row.topic)))
        for row in shown[first : first + ROWS_MAX]
    ]
    return await visit.page(
        "topics.html",
        rows=rows,
        total=len(shown),
        hidden=sum(1 for row in totals if row.topic in configs and configs[row.topic].system),
        first=first,
        rows_max=ROWS_MAX,
        wanted=visit.text("q"),
        show_system=show_system,
        order=order,
        orders=ORDERS,
        may_create=visit.may(ADMIN, TOPIC, visit.text("q")) or visit.may(ADMIN),
    )


async def create(visit: Visit) -> Response:
    """Create a topic from the form."""
    visit.check_writable()
    form = await visit.form()
    name = form.get("topic", "").strip()
    await visit.admin.create_topic(name, whole_number("queues", form.get("queues", ""), 4, 1, QUEUES_MAX))
    return visit.done(f"topic {name} exists", f"/topics/{quote(name, safe='')}")
