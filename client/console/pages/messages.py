"""Messages of a topic: the list, one message, its body as a download, and the search box.

A list is one request for a page of the topic, or one query by key; nothing is found by reading the topic.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.responses import JSONResponse, RedirectResponse, Response

from ....protocol.display import escape
from ....protocol.errors import FilterIllegal, MessageNotFound
from ....protocol.storage.layout import SysFlag
from ....protocol.storage.record import decode_record
from ...core.consume.batch import StoredMessage
from ...core.consume.pages import MessageSummary, TopicPage
from ...errors import CompressionUnavailable, CorruptMessage, InvalidArgument
from ...operator.display import is_called, is_own, real_name, shown_name
from ...operator.positions import EveryQueue, parse_position
from ..bodies import DECODED_BYTES_MAX, PREVIEW_CHARS, preview, view_body
from ..failures import Refused
from ..render import query
from ..visit import Visit, chosen, whole_number

# ---- A list of messages as the command line and as Python, for people who want to continue there.


def as_command(visit: Visit, topic: str) -> str:
    """Return the ``flintmq`` command that prints what the list shows."""
    words = ["flintmq", "-b", visit.console.options.broker]
    if key := visit.text("key"):
        return " ".join(map(quoted, [*words, "query", "key", topic, key]))
    words += ["pull", topic, "--from", _position_text(visit)]
    for option, name in (("--queue", "queue"), ("--tag", "tag"), ("--filter", "filter")):
        if value := visit.text(name):
            words += [option, value]
    return " ".join(map(quoted, words))


def quoted(word: str) -> str:
    """Return a word for a shell. Control characters are escaped: a terminal would act on them when they are pasted."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (
        each if each.isprintable() and each not in "\\'" else "".join(f"\\{byte:03o}" for byte in each.encode())
        for each in word
    )
    return f"$'{''.join(escaped)}'"


def as_python(visit: Visit, topic: str) -> str:
    """Return the Python lines that print what the list shows."""
    arguments = [repr(topic)]
    if key := visit.text("key"):
        call = f"consumer.query({topic!r}, {key!r})"
    else:
        for name, argument in (("queue", "queue"), ("at", "physical")):
            if visit.text(name):
                arguments.append(f"{argument}={visit.text(name)}")
        for name, argument in (("tag", "tags"), ("filter", "filter")):
            if value := visit.text(name):
                arguments.append(f"{argument}={value!r}")
        call = f"consumer.browse({', '.join(arguments)})"
    return (
        "from flintmq.client import Consumer\n"
        f"with Consumer({visit.console.options.broker!r}) as consumer:\n"
        f"    for message in {call}:\n"
        "        print(message.stored_at, message.keys, message.body)"
    )


def _position_text(visit: Visit) -> str:
    words = visit.text("from")
    return f"-{visit.text('count') or 50}" if words in ("", "newest") else words


COUNTS = {"50": "50", "100": "100", "200": "200"}
KEY_COUNT = 50
"""Messages with a key on one page; the broker sends their bodies whole."""
LIST_BODY_BYTES = 1024
"""Bytes of each body that a list requests: compressed text of that size fills the preview."""
FIELD_BODY_BYTES = 8192
"""Bytes of each body that a list requests if a field of JSON bodies is shown."""
SCAN_MAX = 20_000
READ_BYTES_MAX = DECODED_BYTES_MAX + 1
"""Bytes of a body that the page of a message looks at; a download has all of them."""
FIELD_LEFT_OUT = "(longer than 8 KiB)"
_INDEX = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One line of a list. ``value``: the chosen field of a JSON body."""

    message: MessageSummary | StoredMessage
    size: int
    preview: str
    value: str


@dataclass(frozen=True, slots=True)
class Position:
    """Where a list begins. ``ascending``: shown oldest first; ``upward``: the page before, in the order shown;
    ``arguments``: of ``Consumer.browse``."""

    ascending: bool
    upward: bool
    arguments: dict[str, Any]


NEWEST = Position(ascending=False, upward=False, arguments={})


async def message_list(visit: Visit) -> Response:
    """Return a page of a topic: newest first, from a position, or by key."""
    if visit.failure is not None:
        return await _list_page(visit, links={"older": "", "newer": ""})
    if visit.text("check"):
        return await _check_filter(visit)
    if visit.text("key"):
        return await _by_key(visit)
    topic = visit.path("topic")
    queue = visit.number("queue", -1, 0, 2**31 - 1)
    try:
        position = _position(visit, queue)
    except ValueError as error:
        raise InvalidArgument(f"from: {error}") from None
    field = _field(visit)
    page = None
    wrong_filter: FilterIllegal | None = None
    try:
        page = await visit.consumer.browse(
            topic,
            **position.arguments,
            # A page upward is read against the order shown, and its rows are reversed below.
            newest_first=position.ascending == position.upward,
            count=int(chosen(COUNTS, visit.text("count"))),
            body_bytes=0 if visit.console.options.no_bodies else FIELD_BODY_BYTES if field else LIST_BODY_BYTES,
            tags=visit.text("tag") or None,
            filter=visit.text("filter") or None,
            scan_max=SCAN_MAX,
        )
    except FilterIllegal as error:
        wrong_filter = error
    rows = [_summary_row(visit, message, field) for message in page or ()]
    if position.upward:
        rows.reverse()
    return await _list_page(
        visit,
        status=400 if wrong_filter else 200,
        rows=rows,
        result=page,
        position=position,
        links=_links(visit, page, rows, position),
        wrong_filter=wrong_filter,
        selects=bool(visit.text("tag") or visit.text("filter")),
        command=as_command(visit, topic),
        python=as_python(visit, topic),
    )


async def _list_page(visit: Visit, **found: Any) -> Response:
    """Return the page of a list. ``found``: what is not as on a page without messages."""
    nothing: dict[str, Any] = {
        "rows": [],
        "result": None,
        "position": NEWEST,
        "wrong_filter": None,
        "selects": False,
        "damaged": 0,
        "command": "",
    }
    return await visit.page(
        "messages.html", **(nothing | found), topic=visit.path("topic"), counts=COUNTS, field=_field(visit)
    )


def _field(visit: Visit) -> str:
    """Return the path of the field of JSON bodies that the list shows; empty if it shows none."""
    return "" if visit.console.options.no_bodies else visit.text("field")


async def _check_filter(visit: Visit) -> Response:
    """Return what the broker says of a filter that a person is typing, for the page's script; empty if it is valid."""
    found: dict[str, Any] = {}
    try:
        # The broker parses the filter before it reads: one message is the least that can be asked for.
        await visit.consumer.browse(
            visit.path("topic"), count=1, body_bytes=0, filter=visit.text("filter") or None, scan_max=1
        )
    except FilterIllegal as error:
        found = {"error": escape(str(error)), "filter": escape(visit.text("filter")), "column": error.column or 0}
    return JSONResponse(found)


async def _by_key(visit: Visit) -> Response:
    """Return the messages with a key, newest first."""
    topic, key, field = visit.path("topic"), visit.text("key"), _field(visit)
    found = await visit.consumer.query(topic, key, max_count=KEY_COUNT, cursor=visit.text("cursor") or None)
    return await _list_page(
        visit,
        # On a thread, because bodies may have to be decompressed.
        rows=await asyncio.to_thread(lambda: [_stored_row(visit, message, field) for message in found]),
        links={"older": _list_link(visit, cursor=found.cursor) if found.cursor else "", "newer": ""},
        command=as_command(visit, topic),
        python=as_python(visit, topic),
        damaged=found.damaged,
    )


def _position(visit: Visit, queue: int) -> Position:
    """Return where the list begins. Raises ``ValueError`` if the text is not a position."""
    arguments: dict[str, Any] = {"queue": queue} if queue >= 0 else {}
    at = visit.number("at", -1, 0, 2**63 - 1)
    if at >= 0:
        return Position(visit.text("order") == "asc", visit.text("up") == "1", arguments | {"physical": at})
    words = visit.text("from")
    if words in ("", "newest", "latest"):
        return dataclasses.replace(NEWEST, arguments=arguments)
    given = parse_position(words)
    if isinstance(given, int):
        raise ValueError("the list shows the newest messages already; choose how many below")
    if isinstance(given, EveryQueue):
        if queue < 0:
            raise ValueError(f"{given.offset} is an offset, which needs a queue; or write @{given.offset} for a time")
        arguments["from_"] = given.offset
    elif isinstance(given, dict):
        if len(given) > 1:
            raise ValueError("the list begins in one queue; use QUEUE=OFFSET")
        arguments["queue"], arguments["from_"] = next(iter(given.items()))
    elif not isinstance(given, str):
        arguments["from_"] = given
    return Position(ascending=True, upward=False, arguments=arguments)


def _links(visit: Visit, page: TopicPage | None, rows: list[MessageRow], position: Position) -> dict[str, str]:
    """Return the links to the pages above and below, in the order shown, or an empty string."""
    links = {"older": "", "newer": ""}
    if page is None:
        return links
    order = "asc" if position.ascending else ""
    begins_at_end = not position.arguments.keys() - {"queue"} and not position.ascending
    below = above = page.next_physical
    if position.upward:
        # The page that the person came from is below; its first message is next to the last one shown here.
        last = rows[-1].message.physical_offset if rows else visit.number("at", 0, 0, 2**63 - 1)
        below = last + 1 if position.ascending else last
    else:
        first = rows[0].message.physical_offset if rows else None
        above = None if first is None or begins_at_end else first if position.ascending else first + 1
    down, up = ("newer", "older") if position.ascending else ("older", "newer")
    if below is not None:
        links[down] = _list_link(visit, at=below, order=order)
    if above is not None:
        links[up] = _list_link(visit, at=above, order=order, up="1")
    return links


def _list_link(visit: Visit, **position: object) -> str:
    """Return the list's URL with the same selection and another position."""
    kept = {name: visit.text(name) for name in ("queue", "tag", "filter", "count", "field", "key")}
    return f"/topics/{quote(visit.path('topic'), safe='')}{query(**kept, **position)}"


def _summary_row(visit: Visit, message: MessageSummary, field: str) -> MessageRow:
    shown = "" if visit.console.options.no_bodies else preview(message.body, message.sys_flag, message.has_whole_body)
    value = ""
    if field:
        value = _field_of(message.body, field) if message.has_whole_body else FIELD_LEFT_OUT
    return MessageRow(message, message.body_bytes, shown, value)


def _stored_row(visit: Visit, message: StoredMessage, field: str) -> MessageRow:
    shows_body = not visit.console.options.no_bodies
    try:
        body, is_whole = message.body_start(FIELD_BODY_BYTES if shows_body else 0)
    except (CorruptMessage, CompressionUnavailable) as error:
        return MessageRow(message, 0, f"({error})", "")
    size = len(decode_record(message.record, check_crc=False).body)  # as stored
    if not shows_body:
        return MessageRow(message, size, "", "")
    value = ""
    if field:
        value = _field_of(body, field) if is_whole else FIELD_LEFT_OUT
    return MessageRow(message, size, preview(body, 0, is_whole), value)


def _field_of(body: bytes, path: str) -> str:
    """Return a field of a JSON body by a path such as ``user.id`` or ``$.items.0``, or an empty string."""
    try:
        value = json.loads(body, parse_int=str, parse_float=str)  # digits stay as they were sent
        for name in path.removeprefix("$").strip(".").split("."):
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
                value = value[int(name)]
            else:
                return ""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""
    return text if len(text) <= PREVIEW_CHARS else f"{text[:PREVIEW_CHARS]}…"


# ---- one message


async def message_detail(visit: Visit) -> Response:
    """Return one message with everything that is known about it."""
    topic = visit.path("topic")
    summary = await _summary(visit)
    shows_body = not visit.console.options.no_bodies
    stored = await visit.consumer.message(summary.offset_id) if shows_body else None
    view, body, is_whole, trouble = None, b"", True, ""
    if stored is not None:
        wanted = visit.text("view")
        try:
            # On a thread: to decompress and to lay out a body takes up to a second.
            body, is_whole = await asyncio.to_thread(stored.body_start, READ_BYTES_MAX)
            view = await asyncio.to_thread(view_body, body, wanted, is_whole=is_whole)
            view = await visit.console.decoders.apply(view, wanted, body)
        except (CorruptMessage, CompressionUnavailable) as error:
            trouble = str(error)
    readers = []
    if visit.text("readers"):
        rows = await visit.admin.consume_stats(topic=topic)
        readers = [row for row in rows if row.queue == summary.queue]
    return await visit.page(
        "message.html",
        topic=topic,
        message=summary,
        is_compressed=bool(summary.sys_flag & SysFlag.COMPRESSED),
        view=view,
        body_trouble=trouble,
        body_bytes=len(body),
        has_whole_body=is_whole,
        readers=readers,
        here=f"/topics/{quote(topic, safe='')}/{summary.queue}/{summary.queue_offset}",
    )


async def message_body(visit: Visit) -> Response:
    """Return a message's whole body as a file to save."""
    if visit.console.options.no_bodies:
        raise Refused(403, "this console was started with --no-bodies")
    visit.check_own_site()
    summary = await _summary(visit)
    stored = await visit.consumer.message(summary.offset_id)
    body = await asyncio.to_thread(lambda: stored.body)
    name = f"{visit.path('topic')}-{summary.queue}-{summary.queue_offset}.bin".replace("%", "_")
    # The body comes from a stranger: a browser that opens it after all must not run it as a page of this site.
    return Response(
        body,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{name}"', "content-security-policy": "sandbox"},
    )


async def _summary(visit: Visit) -> MessageSummary:
    """Return the message that the path names. Raises ``MessageNotFound`` if its queue does not hold it."""
    topic, queue = visit.path("topic"), int(visit.path("queue"))
    offset = whole_number("offset", visit.path("offset"), 0, 0, 2**63 - 1)
    page = await visit.consumer.browse(topic, queue, offset, newest_first=False, count=1, body_bytes=0)
    # If there is no message at the offset, the broker answers with the next one.
    if not page or page[0].queue_offset != offset:
        raise MessageNotFound(
            f"queue {queue} of topic {topic} has no message at offset {offset:,}: it does not exist yet, has expired, "
            "or was lost to damage"
        )
    found: MessageSummary = page[0]
    return found


# ---- the search box


async def search(visit: Visit) -> Response:
    """Find a topic, a group, a message by its id, or a message by topic and key."""
    words = visit.text("q").split()
    if len(words) > 1:
        key = quote(" ".join(words[1:]), safe="")
        return RedirectResponse(f"/topics/{quote(real_name(words[0]), safe='')}?key={key}", 303)
    if not words:
        return RedirectResponse("/topics", 303)
    wanted = words[0]
    topics = await visit.admin.topics(system=True)
    if (topic := _named(wanted, topics)) is not None:
        return RedirectResponse(f"/topics/{quote(topic, safe='')}", 303)
    groups = [info.group for info in await visit.admin.groups()]
    if (group := _named(wanted, groups)) is not None:
        return RedirectResponse(f"/groups/{quote(group, safe='')}", 303)
    try:
        message = await visit.consumer.message(wanted)
    except MessageNotFound:
        pass
    else:
        return RedirectResponse(f"/topics/{quote(message.topic, safe='')}/{message.queue}/{message.queue_offset}", 303)
    return await visit.page(
        "search.html",
        wanted=wanted,
        topics=sorted((name for name in topics if is_called(name, wanted)), key=is_own)[:50],
        groups=[name for name in groups if is_called(name, wanted)][:50],
    )


def _named(wanted: str, names: Iterable[str]) -> str | None:
    """Return the real name among ``names`` that a person means by ``wanted``, or None."""
    return next((name for name in names if wanted in (name, shown_name(name))), None)
