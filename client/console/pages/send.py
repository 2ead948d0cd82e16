"""A form that sends one message, empty or filled from a stored message (replay)."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from ....protocol.auth.permissions import PUBLISH, TOPIC
from ....protocol.storage.delivery import (
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SECONDS,
    PROPERTY_TIMER_DELIVER_MS,
)
from ....protocol.storage.record import (
    KEY_SEPARATOR,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
)
from ...core.consume.batch import StoredMessage
from ...errors import InvalidArgument
from ...message import Message
from ..failures import Refused
from ..forms import FORM_BYTES_MAX, MESSAGE_BYTES_MAX
from ..visit import Visit, whole_number

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
    queue, _, offset = place.partition(":")
    found = await visit.consumer.browse(
        visit.path("topic"),
        whole_number("queue", queue, 0, 0, 2**31 - 1),
        whole_number("offset", offset, 0, 0, 2**63 - 1),
        newest_first=False,
        count=1,
        body_bytes=0,
    )
    # If there is no message at the offset, the broker answers with the next one.
    is_there = found and f"{found[0].queue}:{found[0].queue_offset}" == place
    if not is_there or visit.console.options.no_bodies:
        raise Refused(404, f"there is no message {place} to send again, or this console shows no bodies")
    return await visit.consumer.message(found[0].offset_id)


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
    """Send the message of the form."""
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
