"""Messages that were not delivered: dead letters, and those that still wait for their delivery."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from ....protocol.auth.permissions import ADMIN, CONSUME, GROUP, PUBLISH, QUERY, TOPIC
from ....protocol.commands import AttemptInfo, TransactionInfo
from ....protocol.display import iso
from ....protocol.errors import MessageDamaged, TopicNotExist
from ....protocol.rows import Display, ValueKind
from ....protocol.storage.delivery import PROPERTY_RETRY_TOPIC, dead_letter_topic
from ...core.consume.batch import StoredMessage
from ...errors import CompressionUnavailable, CorruptMessage, InvalidArgument
from ...operator.dead_letters import Target, own_properties, waiting_by_group
from ...operator.display import plural, real_name, shown_name
from ..failures import Refused
from ..render import columns_of, query
from ..resend_job import ResendJob, plan_resend
from ..sampler import all_topics
from ..visit import Visit, check_typed, whole_number

ROWS = 50
EXPORT_COUNT = 500
"""Number of dead letters that the export holds in memory."""


async def dead_letters(visit: Visit) -> Response:
    """Return the groups with dead letters: how many wait, and when the last one came."""
    totals = {row.topic: row for row in await all_topics(visit.session)}
    waiting = waiting_by_group(totals.values(), await visit.admin.consume_stats())
    rows = [(group, count, totals[dead_letter_topic(group)]) for group, count in waiting.items()]
    rows.sort(key=lambda row: row[1], reverse=True)
    return await visit.page("dlq.html", rows=rows)


async def of_group(visit: Visit) -> Response:
    """Return a group's dead letters, newest first: why, how often, from which topic."""
    group, shows_all = visit.path("group"), visit.text("all") == "1"
    topic = dead_letter_topic(group)
    at = visit.number("at", -1, 0, 2**63 - 1)
    try:
        page = await visit.consumer.browse(topic, physical=at if at >= 0 else None, count=ROWS, body_bytes=1024)
    except TopicNotExist:
        nothing: dict[str, Any] = {
            "rows": [],
            "waiting": 0,
            "job": None,
            "may_stop": may_stop,
            "here": "",
            "older": "",
            "shows_all": True,
            "may_resend": False,
        }
        return await visit.page("dlq_group.html", group=group, **nothing)
    done = await visit.consumer.committed(group, topic)
    rows = [(message, message.queue_offset >= done.get(message.queue, 0)) for message in page]
    shown = [(message, waits) for message, waits in rows if waits or shows_all]
    # Dead letters are settled from the oldest on, so below a page of settled ones none waits.
    ends = page.next_physical is None or (not shows_all and not shown)
    return await visit.page(
        "dlq_group.html",
        group=group,
        rows=shown,
        # A dead-letter topic has one queue (RocketMQ: DLQ_NUMS_PER_GROUP). Retention may have passed the offset.
        waiting=min(page.messages, page.max_offsets - sum(done.values())),
        job=visit.console.jobs.get(group),
        may_stop=may_stop,
        older="" if ends else f"/dlq/{quote(group, safe='')}?at={page.next_physical}{'&all=1' if shows_all else ''}",
        shows_all=shows_all,
        here=query(at=visit.text("at"), all=visit.text("all")).removesuffix("?"),
        may_resend=visit.may(CONSUME, GROUP, group),
    )


# ---- sending again


def _target(form: dict[str, str], group: str) -> Target:
    where = form.get("where", "")
    if where == "topic" and not form.get("topic", "").strip():
        raise InvalidArgument("type the topic to send them to")
    return Target(
        real_name(form.get("topic", "").strip()) if where == "topic" else "", group if where == "group" else ""
    )


def _places(fields: list[tuple[str, str]]) -> list[tuple[int, int]]:
    """Return the chosen (queue, queue offset) pairs, in their order; empty: all that wait."""
    places = []
    for name, value in fields:
        if name == "place":
            queue, _, offset = value.partition(":")
            places.append(
                (whole_number("queue", queue, 0, 0, 2**31 - 1), whole_number("offset", offset, 0, 0, 2**63 - 1))
            )
    return sorted(set(places))


async def resend(visit: Visit) -> Response:
    """Show what would be sent where; after ``confirmed``, begin to send it."""
    visit.check_writable()
    group, form = visit.path("group"), await visit.form()
    await _check_may_consume(visit, group)
    places = _places(visit.fields)
    if form.get("what") == "selected" and not places:
        raise InvalidArgument("select at least one dead letter")
    if form.get("what") == "all":
        places = []
    target = _target(form, group)
    if form.get("confirmed"):
        job = ResendJob(visit.session.clients.terms, group, places, target, visit.session.user)
        running = visit.console.jobs.get(group)
        if running is not None and not running.is_over:
            raise Refused(409, f"the dead letters of group {group} are being sent already; look at the progress")
        visit.console.start(group, job)
        return visit.done("the dead letters are being sent; this page shows the progress", _page_of(group))
    plan = await plan_resend(visit.session.clients.terms, group, places, target)
    return await visit.page("dlq_resend.html", group=group, plan=plan, places=places, form=form)


async def _check_may_consume(visit: Visit, group: str) -> None:
    """Raise ``Refused`` unless the user may settle the dead letters of a group, by the rights that the user has now."""
    await visit.renew_rights()
    if not visit.may(CONSUME, GROUP, group):
        raise Refused(403, f"you need the right {CONSUME} on the group {shown_name(group)} to send its dead letters")


async def stop(visit: Visit) -> Response:
    """Stop the sending after the messages in progress."""
    visit.check_writable()
    group = visit.path("group")
    job = visit.console.jobs.get(group)
    if job is not None:
        await visit.renew_rights()
        if not may_stop(visit, job):
            raise Refused(403, "only the user who began to send these dead letters and administrators may stop it")
        job.stop()
    return visit.done("it stops after the messages in progress", _page_of(group))


def may_stop(visit: Visit, job: ResendJob) -> bool:
    """Return whether the user may stop a job: the user who began it, and administrators."""
    return job.user == visit.session.user or visit.may(ADMIN)


async def purge(visit: Visit) -> Response:
    """Mark all present dead letters of a group as settled, after its name was typed."""
    visit.check_writable()
    group, form = visit.path("group"), await visit.form()
    check_typed(form, group, "the group")
    topic = dead_letter_topic(group)
    stats = await visit.admin.topic_stats(topic)
    await visit.consumer.commit(group, topic, {row.queue: row.max_offset for row in stats})
    return visit.done(f"the dead letters of group {shown_name(group)} are marked as settled", _page_of(group))


def _page_of(group: str) -> str:
    return f"/dlq/{quote(group, safe='')}"


# ---- export


async def export(visit: Visit) -> Response:
    """Return the dead letters that wait as JSON lines, which ``flintmq import`` reads."""
    if visit.console.options.no_bodies:
        raise Refused(403, "this console was started with --no-bodies")
    visit.check_own_site()
    group = visit.path("group")
    stats = await visit.admin.topic_stats(dead_letter_topic(group))
    done = await visit.consumer.committed(group, dead_letter_topic(group))
    spans = [(row.queue, max(done.get(row.queue, 0), row.min_offset), row.max_offset) for row in stats]
    name = f"dead-letters-{group}.jsonl".replace("%", "_")
    return StreamingResponse(
        _lines(visit, dead_letter_topic(group), spans),
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{name}"', "content-security-policy": "sandbox"},
    )


async def _lines(visit: Visit, topic: str, spans: list[tuple[int, int, int]]) -> AsyncIterator[str]:
    for queue, first, end in spans:
        offset = first
        while offset < end and not visit.console.ending.is_set():
            try:
                batch = await visit.consumer.pull(topic, queue, offset, min(EXPORT_COUNT, end - offset))
            except MessageDamaged as error:
                yield json.dumps({"queue": queue, "queue_offset": error.queue_offset, "error": str(error)}) + "\n"
                offset = error.queue_offset + 1
                continue
            offset, messages = batch.next_offset, [*batch][::-1]
            del batch
            while messages:
                # On a thread, because a body may be large once it is decompressed, and then forgotten.
                yield await asyncio.to_thread(_exported_line, messages.pop())


def _exported_line(message: StoredMessage) -> str:
    row: dict[str, Any] = {
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "stored_at": iso(message.stored_at),
        "topic": message.properties.get(PROPERTY_RETRY_TOPIC),
        "tries": message.reconsume_times,
        "reason": message.retry_reason,
        "keys": list(message.keys),
        "tags": message.tags,
        "properties": own_properties(message),
    }
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = b64encode(message.body).decode()
    except (CompressionUnavailable, CorruptMessage) as error:
        row["error"] = str(error)
    return json.dumps(row, ensure_ascii=False) + "\n"


# ---- What waits for its delivery: delayed messages, open and parked transactions, stages.

ROWS_MAX = 100
TRANSACTION_COLUMNS = columns_of(
    TransactionInfo,
    "id topic group born_at age checks end",
    id="Id",
    group="Producer group",
    age=Display("age", ValueKind.SECONDS),
    end=Display("end"),
)
STAGE_COLUMNS = columns_of(
    AttemptInfo,
    "attempt topics messages active_at idle drop",
    attempt="Stage",
    active_at=Display("last message", ValueKind.MOMENT),
    idle=Display("idle", ValueKind.SECONDS),
    drop=Display("drop"),
)


async def delays(visit: Visit) -> Response:
    """Return the number of delayed messages by level and by hour."""
    stats = await visit.admin.delays() if visit.may(QUERY) else None
    levels = sorted(stats.levels.items()) if stats else []
    return await visit.page("delays.html", stats=stats, levels=levels)


# ---- transactions


async def transactions(visit: Visit) -> Response:
    parked = visit.text("parked") == "1"
    page = await visit.admin.transactions(
        parked=parked, from_offset=visit.number("from", 0, 0, 2**63 - 1), max_count=ROWS_MAX
    )
    return await visit.page(
        "transactions.html",
        page=page,
        columns=TRANSACTION_COLUMNS,
        parked=parked,
        is_first=not visit.text("from"),
        may_end=lambda each: visit.may(PUBLISH, GROUP, each.group) and visit.may(PUBLISH, TOPIC, each.topic),
    )


async def transaction(visit: Visit) -> Response:
    return await visit.page(
        "transaction.html",
        id=visit.given("id"),
        group=visit.given("group"),
        topic=visit.given("topic"),
        commit=visit.given("as") == "commit",
    )


async def end_transaction(visit: Visit) -> Response:
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
        columns=STAGE_COLUMNS,
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
