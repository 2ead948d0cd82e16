"""Bodies of requests that are one msgpack array: taken apart item by item.

Unpacked at once, a body of 16 MiB could be sixteen million empty maps: a gigabyte, and seconds of everybody's time.
Here nothing is made that the command does not have, and the first item that is wrong is the end of it.
"""

from __future__ import annotations

from typing import NoReturn

import msgpack

from ....protocol.errors import InvalidParameter

TEXT_BYTES_MAX = 32_767
INTEGER_MAX = 2**63 - 1


class ArrayBody:
    """``what``: what the body must be, for errors. All methods raise ``InvalidParameter`` where it is not that."""

    __slots__ = ("_length", "_unpacker", "_what")

    def __init__(self, body: memoryview, what: str) -> None:
        self._what = what
        self._length = len(body)
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=max(len(body), 1), max_str_len=TEXT_BYTES_MAX, max_array_len=0, max_map_len=0,
            max_bin_len=0, max_ext_len=0,
        )  # fmt: skip
        self._unpacker.feed(body)

    def array(self) -> int:
        """An array begins: how many items it has."""
        try:
            return int(self._unpacker.read_array_header())
        except (ValueError, msgpack.UnpackException) as error:
            self.refuse(_said(error, "an array is missing"))

    def row(self, items: int) -> None:
        """An array of so many items begins."""
        if (found := self.array()) != items:
            self.refuse(f"an array of {found} items where one of {items} belongs")

    def text(self) -> str:
        """The next item, a str."""
        value = self._next()
        if type(value) is not str:
            self.refuse(f"{_shown(value)} where a str belongs")
        return value

    def integer(self) -> int:
        """The next item, an int from 0 to ``INTEGER_MAX``."""
        value = self._next()
        if type(value) is not int or not 0 <= value <= INTEGER_MAX:
            self.refuse(f"{_shown(value)} where an integer from 0 to {INTEGER_MAX} belongs")
        return value

    def end(self) -> None:
        """The body must end here."""
        if self._unpacker.tell() != self._length:
            self.refuse("bytes follow it")

    def refuse(self, why: str) -> NoReturn:
        """Raise ``InvalidParameter``."""
        raise InvalidParameter(f"the body is not {self._what}: {why}")

    def _next(self) -> object:
        try:
            value: object = self._unpacker.unpack()
        except (ValueError, msgpack.UnpackException) as error:
            self.refuse(_said(error, "no msgpack"))
        return value


def _said(error: Exception, otherwise: str) -> str:
    return "it ends too early" if isinstance(error, msgpack.OutOfData) else str(error) or otherwise


def _shown(value: object) -> str:
    return str(value) if type(value) in (int, float, bool) else f"a {type(value).__name__}"
