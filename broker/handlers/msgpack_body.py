"""Decoder for request bodies that are one msgpack array, item by item.

Unpacked at once, a body of 16 MiB could turn into sixteen million empty maps: a gigabyte of memory, and seconds in
which the loop serves no one else. This decoder creates only the items that the command expects, and stops at the first
wrong one.
"""

from __future__ import annotations

from typing import NoReturn

import msgpack

from ...protocol.errors import InvalidParameter

TEXT_BYTES_MAX = 32_767
INTEGER_MAX = 2**63 - 1


class ArrayBody:
    """A body that is one msgpack array. All methods raise ``InvalidParameter`` if the body is not as expected.

    ``expected``: description of the expected body, for errors.
    """

    __slots__ = ("_expected", "_length", "_unpacker")

    def __init__(self, body: memoryview, expected: str) -> None:
        self._expected = expected
        self._length = len(body)
        self._unpacker = msgpack.Unpacker(
            # At least 1, because msgpack takes 0 for 4 GiB.
            max_buffer_size=max(len(body), 1),
            max_str_len=TEXT_BYTES_MAX,
            # ``unpack`` is for text and integers only; ``read_array_header`` heeds no limit.
            max_array_len=0,
            max_map_len=0,
            max_bin_len=0,
            max_ext_len=0,
        )
        self._unpacker.feed(body)

    def array(self) -> int:
        """Read the header of an array; return its number of items."""
        try:
            return int(self._unpacker.read_array_header())
        except (ValueError, msgpack.UnpackException) as error:
            self.refuse(_reason(error, "an array is missing"))

    def row(self, items: int) -> None:
        """Read the header of an array of exactly ``items`` items."""
        if (found := self.array()) != items:
            self.refuse(f"expected an array of {items} items, got one of {found}")

    def text(self) -> str:
        """Read the next item, a str."""
        value = self._next()
        if type(value) is not str:
            self.refuse(f"expected a str, got {_describe(value)}")
        return value

    def integer(self) -> int:
        """Read the next item, an int from 0 to ``INTEGER_MAX``."""
        value = self._next()
        # Not ``isinstance``, for which a bool is an int too.
        if type(value) is not int or not 0 <= value <= INTEGER_MAX:
            self.refuse(f"expected an integer from 0 to {INTEGER_MAX}, got {_describe(value)}")
        return value

    def end(self) -> None:
        if self._unpacker.tell() != self._length:
            self.refuse("there are bytes after its end")

    def refuse(self, why: str) -> NoReturn:
        raise InvalidParameter(f"the body is not {self._expected}: {why}")

    def _next(self) -> object:
        try:
            value: object = self._unpacker.unpack()
        except (ValueError, msgpack.UnpackException) as error:
            self.refuse(_reason(error, "it is not msgpack"))
        return value


def _reason(error: Exception, default: str) -> str:
    return "it ends too early" if isinstance(error, msgpack.OutOfData) else str(error) or default


def _describe(value: object) -> str:
    return str(value) if type(value) in (int, float, bool) else f"a {type(value).__name__}"
