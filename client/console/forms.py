"""Forms that browsers send: how large they may be, and how they are read."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from .failures import Refused

FORM_BYTES_MAX = 64 * 1024
"""Maximum size of most forms."""
OFFSETS_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size of the form with the offsets of all queues of a topic."""
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Maximum size of the form with a message: one of 4 MiB takes up to three times that as form data."""
FIELDS_MAX = 200
LARGE_FORMS_MAX = 4
"""Maximum number of forms over ``FORM_BYTES_MAX`` that are read at the same time."""
_DECODED_AT_ONCE = 64 * 1024


class Forms:
    """Reads the forms of all visitors, so that those in progress have a bound together."""

    def __init__(self) -> None:
        self._large = 0

    async def read(self, request: Request, bytes_max: int = FORM_BYTES_MAX) -> list[tuple[str, str]]:
        """Return the fields of a submitted form in their order. Raises ``Refused`` if it is too large or not a form."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise Refused(415, "expected a form (application/x-www-form-urlencoded)")
        data, is_large = bytearray(), False
        try:
            async for chunk in request.stream():
                if len(data) + len(chunk) > bytes_max:
                    raise Refused(413, f"the form is larger than {bytes_max:,} bytes")
                data += chunk
                if not is_large and len(data) > FORM_BYTES_MAX:
                    if self._large >= LARGE_FORMS_MAX:
                        raise Refused(429, f"{self._large} large forms are being read already; try again in a moment")
                    self._large, is_large = self._large + 1, True
            # On a thread, a large one does not hold up the pages of others.
            return await asyncio.to_thread(parse_form, data) if is_large else parse_form(data)
        except ValueError as error:
            raise Refused(400, f"the form is malformed: {error}") from None
        finally:
            self._large -= is_large


def parse_form(data: bytes | bytearray) -> list[tuple[str, str]]:
    """Return the fields of a form in their order. Raises ``ValueError``.

    Unlike ``parse_qsl``, it needs little more memory than the form itself, whatever the form is made of.
    """
    if not data.isascii():
        raise ValueError("it has bytes that are not ASCII")
    if data.count(b"&") >= FIELDS_MAX:
        raise ValueError(f"it has more than {FIELDS_MAX} fields")
    fields = []
    for pair in data.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            fields.append((_decoded(name), _decoded(value)))
    return fields


def _decoded(part: bytes | bytearray) -> str:
    part = part.replace(b"+", b" ")
    if b"%" not in part:
        return part.decode("ascii")
    whole, at = bytearray(), 0
    while at < len(part):
        end = at + _DECODED_AT_ONCE
        # An escape has three characters; one that begins just before the end belongs to the next piece.
        cut = part.find(b"%", end - 2, end)
        end = cut if cut >= 0 and end < len(part) else end
        whole += unquote_to_bytes(bytes(part[at:end]))
        at = end
    return whole.decode("utf-8")
