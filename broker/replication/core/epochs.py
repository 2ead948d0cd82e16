"""Epochs of a log: for each leadership the physical offset at which it began to write.

Bytes of two logs are equal up to the end of the longest common prefix of their epoch lists. This holds because an epoch
has one primary, because a primary gives its epoch a start before it writes, and because a follower takes over the
primary's list only after it has cut its own log. (RocketMQ keeps an epoch whose successor starts at the same offset,
and so takes two different histories for one; Kafka: KIP-101 and KIP-279.)
"""

from __future__ import annotations

from typing import NamedTuple


class Epoch(NamedTuple):
    """One leadership in a log."""

    number: int
    start: int
    """Physical offset of the first byte that this leadership wrote."""


Epochs = tuple[Epoch, ...]


def last_epoch(epochs: Epochs) -> int:
    """Return the number of the newest epoch, 0 if there is none."""
    return epochs[-1].number if epochs else 0


def common_end(ours: Epochs, our_end: int, theirs: Epochs, their_end: int) -> int | None:
    """Return the physical offset up to which two logs have the same history; None if they have no epoch in common
    although both have records.

    ``our_end``, ``their_end``: physical offsets at which the logs end.
    """
    common = 0
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            break
        common += 1
    if common == 0:
        return 0 if not our_end or not their_end else None
    return min(_end_of(ours, common - 1, our_end), _end_of(theirs, common - 1, their_end))


def _end_of(epochs: Epochs, position: int, log_end: int) -> int:
    """Return the physical offset at which the bytes of one epoch end."""
    if position + 1 < len(epochs):
        return min(epochs[position + 1].start, log_end)
    return log_end
