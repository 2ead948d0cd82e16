"""Texts of arguments: a Python ``str`` may have halves of surrogate pairs, which no request can carry."""

from __future__ import annotations

from ..errors import InvalidArgument


def check_unicode(what: str, text: str) -> str:
    """Return ``text``; raise ``InvalidArgument``, beginning with ``what``, if it is not valid Unicode.

    A word of a command line that is not UTF-8, for instance, is not.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} {text!r:.60} is not valid Unicode: {error.reason}") from None
    return text
