"""Tags and filters of waiting pulls. Pulls with the same selection share it, and its memory is counted.

A waiting pull takes ``HELD_PULL_BYTES``; long tags or a long filter can take a hundred times that. They count as the
corresponding number of additional pulls, per connection and in total.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from ..filters import Filter

HELD_PULL_BYTES = 1536
"""Memory of a waiting pull without its selection."""
_INTEGER_BYTES = 32
_FILTER_BYTES = 2048
_FILTER_BYTES_A_CHAR = 128
"""A compiled filter takes up to 116 bytes per character of its text: ``a=b OR a=b OR …``."""


class Selection:
    """Tags and filter of one or more pulls. ``tags``: tag codes, None for all; ``records``: filter, None for none."""

    __slots__ = ("__weakref__", "_all", "bytes", "records", "tags")

    def __init__(self, of_all: Selections, tags: frozenset[int] | None, records: Filter | None) -> None:
        self.tags = tags
        self.records = records
        self.bytes = 0
        if tags is not None:
            self.bytes += sys.getsizeof(tags) + _INTEGER_BYTES * len(tags)
        if records is not None:
            self.bytes += _FILTER_BYTES + _FILTER_BYTES_A_CHAR * len(records.text)
        self._all = of_all
        of_all.bytes += self.bytes

    def __del__(self) -> None:
        # With the last reference, however the pull ends: so no path can forget to count it.
        self._all.bytes -= self.bytes


class Selections:
    """All selections that a pull refers to. ``bytes``: their total memory."""

    def __init__(self) -> None:
        self.bytes = 0
        self._known: WeakValueDictionary[tuple[frozenset[int] | None, str], Selection] = WeakValueDictionary()

    def share(self, tags: frozenset[int] | None, records: Filter | None) -> Selection:
        """Return the selection with these tags and this filter; equal selections are the same object."""
        key = (tags, "" if records is None else records.text)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Selection(self, tags, records)
        return known


class Shares:
    """Selections in use by the pulls of one connection. ``bytes``: their memory, each selection counted once."""

    __slots__ = ("bytes", "uses")

    def __init__(self) -> None:
        self.bytes = 0
        self.uses: dict[Selection, int] = {}
        """Number of pulls of each selection."""


class Share:
    """One pull's use of a selection; it counts until it is garbage-collected."""

    __slots__ = ("_shares", "selection")

    def __init__(self, selection: Selection, shares: Shares) -> None:
        self.selection = selection
        self._shares = shares
        uses = shares.uses.get(selection, 0)
        shares.uses[selection] = uses + 1
        if not uses:
            shares.bytes += selection.bytes

    def __del__(self) -> None:
        shares = self._shares
        uses = shares.uses[self.selection] - 1
        if uses:
            shares.uses[self.selection] = uses
        else:
            del shares.uses[self.selection]
            shares.bytes -= self.selection.bytes
