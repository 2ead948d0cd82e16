"""The tags and filters of pulls that wait: pulls that want the same share them, and what they take is counted.

A pull that waits takes ``HELD_PULL_BYTES``; long tags and filters take a hundred times that. They count as so many
pulls more, for the connection and for all together.
"""

from __future__ import annotations

import sys
from weakref import WeakValueDictionary

from ..filters import Filter

HELD_PULL_BYTES = 1536
"""What a pull that waits takes, beside its selection."""
_INTEGER_BYTES = 32
_FILTER_BYTES = 2048
_FILTER_BYTES_A_CHAR = 128
"""A compiled filter takes up to 116 bytes a character of its text: ``a=b OR a=b OR …``."""


class Selection:
    """What pulls want of their queues. ``tags``: codes, None for all; ``records``: what a record must match, too."""

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
        self._all.bytes -= self.bytes


class Selections:
    """All selections that a pull holds on to. ``bytes``: what they take together."""

    def __init__(self) -> None:
        self.bytes = 0
        self._known: WeakValueDictionary[tuple[frozenset[int] | None, str], Selection] = WeakValueDictionary()

    def share(self, tags: frozenset[int] | None, records: Filter | None) -> Selection:
        """The selection of these, the same one for all who want the same."""
        key = (tags, "" if records is None else records.text)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Selection(self, tags, records)
        return known


class Shares:
    """What the pulls of one connection have of selections. ``bytes``: what those take together, each of them once."""

    __slots__ = ("bytes", "uses")

    def __init__(self) -> None:
        self.bytes = 0
        self.uses: dict[Selection, int] = {}
        """By selection: how many pulls have it."""


class Share:
    """One pull's share of a selection; it counts as long as somebody holds on to it."""

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
