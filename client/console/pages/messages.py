"""Messages of a topic: the list, one message, its body as a download, the search box, and sending one.

A list is one request for a page of the topic, or one query by key; nothing is found by reading the topic.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from starlette.responses import JSONResponse, RedirectResponse, Response

from ....protocol.auth.permissions import PUBLISH, TOPIC
from ....protocol.display import escape
from ....protocol.errors import FilterIllegal, MessageNotFound
from ....protocol.storage.delivery import (
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SECONDS,
    PROPERTY_TIMER_DELIVER_MS,
)
from ....protocol.storage.layout import SysFlag
from ....protocol.storage.record import (
    KEY_SEPARATOR,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    decode_record,
)
from ...core.consume.batch import StoredMessage
from ...core.consume.pages import MessageSummary, TopicPage
from ...errors import CompressionUnavailable, CorruptMessage, InvalidArgument
from ...message import Message
from ...operator.display import is_called, is_own, real_name, shown_name
from ...operator.positions import EveryQueue, parse_position
from ..bodies import DECODED_BYTES_MAX, PREVIEW_CHARS, preview, view_body
from ..failures import Refused
from ..render import query
from ..services import FORM_BYTES_MAX, MESSAGE_BYTES_MAX
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
    value = ""
    if field:
        value = _field_of(message.body, field) if message.has_whole_body else FIELD_LEFT_OUT
    return MessageRow(message, message.body_bytes, visit.preview(message), value)


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
    summary = await _summary(visit, f"{visit.path('queue')}:{visit.path('offset')}")
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
    summary = await _summary(visit, f"{visit.path('queue')}:{visit.path('offset')}")
    stored = await visit.consumer.message(summary.offset_id)
    body = await asyncio.to_thread(lambda: stored.body)
    name = f"{visit.path('topic')}-{summary.queue}-{summary.queue_offset}.bin".replace("%", "_")
    # The body comes from a stranger: a browser that opens it after all must not run it as a page of this site.
    return Response(
        body,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{name}"', "content-security-policy": "sandbox"},
    )


async def _summary(visit: Visit, place: str) -> MessageSummary:
    """Return the message at ``QUEUE:OFFSET`` of the topic. Raises ``MessageNotFound`` if its queue does not hold it."""
    topic = visit.path("topic")
    queue_text, _, offset_text = place.partition(":")
    queue = whole_number("queue", queue_text, 0, 0, 2**31 - 1)
    offset = whole_number("offset", offset_text, 0, 0, 2**63 - 1)
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


# ---- A form that sends one message, empty or filled from a stored message (replay).

PROPERTY_REPLAY_OF = "REPLAY_OF"
"""Property of a replayed message: the id of the message that it repeats."""
DELAY_SECONDS_MAX = 10 * 365 * 24 * 3600
BODY_BYTES_MAX = FORM_BYTES_MAX
"""Maximum length of a stored body that the form shows; a longer one is sent again as it is stored."""
FIELDS = ("body", "base64", "keep_body", "keys", "tag", "sharding_key", "properties", "delay", "queue", "replay")
_FIELD_OF = {
    PROPERTY_KEYS: "Keys",
    PROPERTY_TAGS: "Tag",
    PROPERTY_SHARDING_KEY: "Sharding key",
    PROPERTY_DELAY: "Deliver after seconds",
    PROPERTY_TIMER_DELIVER_MS: "Deliver after seconds",
    PROPERTY_TIMER_DELAY_MS: "Deliver after seconds",
    PROPERTY_TIMER_DELAY_SECONDS: "Deliver after seconds",
}
"""The field of the form for a property that must not be among the others."""


async def send_form(visit: Visit) -> Response:
    """Return the form; ``replay=QUEUE:OFFSET`` fills it from that message."""
    topic = visit.path("topic")
    if not visit.may(PUBLISH, TOPIC, topic):
        raise Refused(403, f"you may not publish to topic {topic}, or this console is read only")
    fields = dict.fromkeys(FIELDS, "")
    if visit.failed():
        fields |= dict(visit.fields)
    elif replay := visit.text("replay"):
        stored = await _stored(visit, replay)
        fields |= {"replay": replay} | await asyncio.to_thread(_fields_of, stored)
    return await visit.page("send.html", topic=topic, fields=fields)


async def _stored(visit: Visit, place: str) -> StoredMessage:
    if visit.console.options.no_bodies:
        raise Refused(403, "this console was started with --no-bodies")
    return await visit.consumer.message((await _summary(visit, place)).offset_id)


def _fields_of(stored: StoredMessage) -> dict[str, str]:
    """Return the form's fields for a stored message."""
    message = Message.again(stored, body=b"", properties=_properties_of(stored))
    fields = {
        "keys": KEY_SEPARATOR.join(message.keys),
        "tag": message.tags or "",
        "sharding_key": message.sharding_key or "",
        "properties": "\n".join(_property_line(name, value) for name, value in message.properties.items()),
    }
    body, is_whole = stored.body_start(BODY_BYTES_MAX)
    if not is_whole:
        return fields | {"keep_body": "1"}
    try:
        text = body.decode()
        # A browser sends CRLF for every line end, which would change the body.
        is_text = "\r" not in text and "\x00" not in text
    except UnicodeDecodeError:
        is_text = False
    return fields | ({"body": text} if is_text else {"body": base64.b64encode(body).decode(), "base64": "1"})


def _properties_of(stored: StoredMessage) -> dict[str, str]:
    return {**Message.again(stored, body=b"").properties, PROPERTY_REPLAY_OF: stored.message_id}


def _property_line(name: str, value: str) -> str:
    """Return a property as a line of the form: as JSON if the line would not be read as the same property."""
    plain = f"{name}={value}"
    is_plain = plain.isprintable() and "=" not in name and name.strip() == name and not name.startswith('"')
    return plain if is_plain else f"{json.dumps(name)}: {json.dumps(value)}"


async def send_message(visit: Visit) -> Response:
    visit.check_writable()
    topic = visit.path("topic")
    if not visit.may(PUBLISH, TOPIC, topic):  # before a large form is read
        raise Refused(403, f"you may not publish to topic {topic}")
    form = await visit.form(MESSAGE_BYTES_MAX)
    queue = whole_number("queue", form.get("queue", ""), -1, 0, 2**31 - 1)
    if place := form.get("replay"):
        stored = await _stored(visit, place)
        message = await asyncio.to_thread(message_again, stored, topic, form)
    else:
        message = await asyncio.to_thread(lambda: Message(topic, **arguments_of(form)))
    receipt = await visit.session.clients.producer.send(message, queue=queue if queue >= 0 else None)
    place = f"{receipt.queue}:{receipt.queue_offset}"
    return visit.done(
        f"stored at {place} as {receipt.message_id}",
        f"/topics/{quote(topic, safe='')}/{receipt.queue}/{receipt.queue_offset}"
        if not form.get("delay")
        else f"/topics/{quote(topic, safe='')}",
    )


def message_again(stored: StoredMessage, topic: str, form: dict[str, str]) -> Message:
    """Return a stored message with what the person changed in the form: all else is as it was stored, also what a form
    cannot express. Raises ``InvalidArgument`` or ``InvalidMessage``."""
    shown, typed = arguments_of(_fields_of(stored)), arguments_of(form)
    changed = {name: value for name, value in typed.items() if value != shown.get(name)}
    return Message.again(stored, topic, **({"properties": _properties_of(stored)} | changed))


def arguments_of(form: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of ``Message`` that a form describes; without a body if the stored one is kept. Raises
    ``InvalidArgument``."""
    delay = whole_number("delay", form.get("delay", ""), 0, 0, DELAY_SECONDS_MAX)
    found: dict[str, Any] = {
        "keys": form.get("keys", "").split(),
        "tags": form.get("tag", "").strip() or None,
        "sharding_key": form.get("sharding_key", "").strip() or None,
        "properties": dict(map(_property, filter(str.strip, form.get("properties", "").splitlines()))),
        "delay": timedelta(seconds=delay) if delay else None,
    }
    if not form.get("keep_body"):
        found["body"] = _body(form)
    return found


def _body(form: dict[str, str]) -> bytes:
    text = form.get("body", "").replace("\r\n", "\n")  # browsers send CRLF for every line end
    if not form.get("base64"):
        return text.encode()
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise InvalidArgument(f"the body is not base64: {error}") from None


def _property(line: str) -> tuple[str, str]:
    name, separator, value = line.partition("=")
    if line.lstrip().startswith('"'):
        try:
            ((name, value),) = json.loads(f"{{{line}}}").items()
        except (ValueError, RecursionError):
            raise InvalidArgument(f'properties: {line[:60]!r} is not "NAME": "VALUE", as in JSON') from None
        if not isinstance(value, str):
            raise InvalidArgument(f"properties: the value in {line[:60]!r} is not a string")
    elif not separator:
        raise InvalidArgument(f"properties: {line[:60]!r} is not NAME=VALUE")
    else:
        name = name.strip()
    if field := _FIELD_OF.get(name):
        raise InvalidArgument(f"properties: {name} is not an ordinary property; use the field “{field}” of this form")
    return name, value
