"""Messages that wait for their delivery: delayed messages, open and parked transactions, and stages of transactions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from starlette.responses import Response

from ....protocol.auth.permissions import GROUP, PUBLISH, QUERY, TOPIC
from ...core.admin import DelayedMessages
from ...errors import InvalidArgument
from ...operator.display import plural
from ..failures import Refused
from ..visit import Visit

ROWS_MAX = 100


@dataclass(frozen=True, slots=True)
class DelayRow:
    """Delayed messages of a level or an hour."""

    name: str
    at: datetime | None
    waiting: DelayedMessages


async def delays(visit: Visit) -> Response:
    """Return the number of delayed messages by level and by hour."""
    stats = await visit.admin.delays() if visit.may(QUERY) else None
    levels = [DelayRow(f"level {level}", None, each) for level, each in sorted(stats.levels.items())] if stats else []
    hours = [DelayRow("", at, each) for at, each in stats.hours] if stats else []
    return await visit.page("delays.html", stats=stats, levels=levels, hours=hours)


# ---- transactions


async def transactions(visit: Visit) -> Response:
    """Return a page of the open transactions, or of the parked ones."""
    parked = visit.text("parked") == "1"
    page = await visit.admin.transactions(
        parked=parked, from_offset=visit.number("from", 0, 0, 2**63 - 1), max_count=ROWS_MAX
    )
    return await visit.page(
        "transactions.html",
        page=page,
        parked=parked,
        is_first=not visit.text("from"),
        may_end=lambda each: visit.may(PUBLISH, GROUP, each.group) and visit.may(PUBLISH, TOPIC, each.topic),
    )


async def transaction(visit: Visit) -> Response:
    """Return the form that ends a transaction."""
    return await visit.page(
        "transaction.html",
        id=visit.given("id"),
        group=visit.given("group"),
        topic=visit.given("topic"),
        commit=visit.given("as") == "commit",
    )


async def end_transaction(visit: Visit) -> Response:
    """Commit a transaction, or roll it back."""
    visit.check_writable()
    form = await visit.form()
    if form.get("as") not in ("commit", "rollback"):
        raise Refused(400, "the form says neither commit nor rollback; nothing was done")
    transaction_id, commit = form.get("id", ""), form["as"] == "commit"
    await visit.admin.end_transaction(transaction_id, form.get("group", ""), commit=commit)
    return visit.done(
        f"transaction {transaction_id} is {'committed' if commit else 'rolled back'}", "/waiting/transactions"
    )


# ---- stages


async def stages(visit: Visit) -> Response:
    """Return the stages of transactions that are not committed, those that have been idle longest first."""
    prefix = visit.text("q")
    return await visit.page(
        "stages.html",
        found=await visit.admin.prepared(prefix, max_count=ROWS_MAX),
        prefix=prefix,
        may_drop=lambda each: all(visit.may(PUBLISH, TOPIC, topic) for topic in each.topics),
    )


async def stage(visit: Visit) -> Response:
    """Return the stages that dropping one would drop with it, with the form that does it."""
    name = visit.given("name")
    # The broker drops by prefix, so the person must see every stage whose name begins like this one.
    found = await visit.admin.prepared(name, max_count=ROWS_MAX) if name else None
    return await visit.page("stage.html", name=name, found=found, rows_max=ROWS_MAX)


async def drop_stage(visit: Visit) -> Response:
    """Drop the stages whose names begin with a name that was typed."""
    visit.check_writable()
    form = await visit.form()
    name = form.get("name", "")
    if not name or form.get("typed", "").strip() != name:
        raise InvalidArgument(f"nothing was dropped: type the name of the stage, {name}, to drop it")
    count = await visit.admin.abort_prepared(name)
    return visit.done(f"dropped {plural(count, 'stage')}", "/waiting/stages")
