"""A form that sends one message, empty or filled from a stored message (replay)."""

from __future__ import annotations

import base64
import binascii
from datetime import timedelta
from urllib.parse import quote

from starlette.responses import Response

from ....protocol.auth.permissions import PUBLISH, TOPIC
from ...errors import InvalidArgument
from ...message import Message
from ...operator.dead_letters import own_properties
from ..visit import Refused, Visit, whole_number

PROPERTY_REPLAY_OF = "REPLAY_OF"
"""Property of a replayed message: the id of the message that it repeats."""
DELAY_SECONDS_MAX = 10 * 365 * 24 * 3600


async def send_form(visit: Visit) -> Response:
    """Return the form; ``replay=QUEUE:OFFSET`` fills it from that message."""
    topic = visit.path("topic")
    if not visit.may(PUBLISH, TOPIC, topic):
        raise Refused(403, f"you may not publish to topic {topic}, or this console is read only")
    fields = {"body": "", "base64": "", "keys": "", "tag": "", "properties": "", "delay": "", "queue": ""}
    if replay := visit.text("replay"):
        fields |= await _fields_of(visit, replay)
    return await visit.page("send.html", topic=topic, fields=fields)


async def _fields_of(visit: Visit, place: str) -> dict[str, str]:
    """Return the form's fields for a stored message."""
    queue, _, offset = place.partition(":")
    found = await visit.consumer.browse(
        visit.path("topic"),
        whole_number("queue", queue, 0, 0, 2**31 - 1),
        whole_number("offset", offset, 0, 0, 2**63 - 1),
        newest_first=False,
        count=1,
        body_bytes=0,
    )
    if not found or visit.console.options.no_bodies:
        raise Refused(404, f"there is no message {place} to send again, or this console shows no bodies")
    message = await visit.consumer.message(found[0].offset_id)
    properties = own_properties(message) | {PROPERTY_REPLAY_OF: message.message_id}
    fields = {
        "keys": " ".join(message.keys),
        "tag": message.tags or "",
        "properties": "\n".join(f"{name}={value}" for name, value in properties.items()),
    }
    try:
        text = message.body.decode()
        # A browser sends CRLF for every line end, which would change the body.
        is_text = "\r" not in text and "\x00" not in text
    except UnicodeDecodeError:
        is_text = False
    return fields | ({"body": text} if is_text else {"body": base64.b64encode(message.body).decode(), "base64": "1"})


async def send_message(visit: Visit) -> Response:
    """Send the message of the form."""
    visit.check_writable()
    topic, form = visit.path("topic"), await visit.form()
    queue = whole_number("queue", form.get("queue", ""), -1, 0, 2**31 - 1)
    receipt = await visit.session.clients.producer.send(message_of(topic, form), queue=queue if queue >= 0 else None)
    place = f"{receipt.queue}:{receipt.queue_offset}"
    return visit.done(
        f"stored at {place} as {receipt.message_id}",
        f"/topics/{quote(topic, safe='')}/{receipt.queue}/{receipt.queue_offset}"
        if not form.get("delay")
        else f"/topics/{quote(topic, safe='')}",
    )


def message_of(topic: str, form: dict[str, str]) -> Message:
    """Return the message that a form describes. Raises ``InvalidArgument`` or ``InvalidMessage``."""
    text = form.get("body", "").replace("\r\n", "\n")  # browsers send CRLF for every line end
    if form.get("base64"):
        try:
            body = base64.b64decode("".join(text.split()), validate=True)
        except binascii.Error as error:
            raise InvalidArgument(f"the body is not base64: {error}") from None
    else:
        body = text.encode()
    properties = {}
    for line in form.get("properties", "").splitlines():
        if line.strip():
            name, separator, value = line.partition("=")
            if not separator:
                raise InvalidArgument(f"properties: {line[:60]!r} is not NAME=VALUE")
            properties[name.strip()] = value
    delay = whole_number("delay", form.get("delay", ""), 0, 0, DELAY_SECONDS_MAX)
    return Message(
        topic,
        body,
        keys=form.get("keys", "").split(),
        tags=form.get("tag", "").strip() or None,
        properties=properties,
        delay=timedelta(seconds=delay) if delay else None,
    )
