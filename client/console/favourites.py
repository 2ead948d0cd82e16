"""Topics that a person keeps at the top of the list. They are in a cookie: neither console nor broker keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from ..errors import InvalidArgument

COOKIE = "flintmq_favourites"
FAVOURITES_MAX = 30
COOKIE_CHARS_MAX = 3_000
"""Maximum length of the cookie: browsers drop one of more than 4 KiB."""
COOKIE_SECONDS = 365 * 24 * 3600
_SEPARATOR = ":"


def favourites_of(request: Request) -> list[str]:
    """Return the topics that the browser says are favourites, the oldest first."""
    written = request.cookies.get(COOKIE, "")[:COOKIE_CHARS_MAX]
    return [unquote(part) for part in written.split(_SEPARATOR) if part][:FAVOURITES_MAX]


def packed_favourites(topics: Sequence[str]) -> str:
    """Return the cookie's value. Raises ``InvalidArgument`` if they are too many."""
    written = _SEPARATOR.join(quote(topic, safe="") for topic in topics)
    if len(topics) > FAVOURITES_MAX or len(written) > COOKIE_CHARS_MAX:
        raise InvalidArgument(f"at most {FAVOURITES_MAX} topics with short names can be favourites; remove one first")
    return written


def set_favourites(response: Response, packed: str, *, is_encrypted: bool) -> None:
    """Give the browser the cookie."""
    # By its path, browsers send it to the pages of topics alone.
    response.set_cookie(
        COOKIE, packed, COOKIE_SECONDS, httponly=True, samesite="strict", secure=is_encrypted, path="/topics"
    )
