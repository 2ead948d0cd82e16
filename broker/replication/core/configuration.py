"""The configuration of a replica set, as the registry keeps it: who leads, and which members hold every acknowledged
message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Configuration of a replica set. It changes only by compare-and-set on the registry's version of it."""

    cluster_id: str
    """Identity of the set, made once; a store never joins another set."""
    epoch: int
    """Number of the leadership: greater by one each time a member becomes primary, 0 before the first."""
    primary: str
    """Id of the member that leads, or that led last; empty before the first."""
    in_sync: frozenset[str]
    """Members that have every acknowledged message; only they may lead."""
    members: frozenset[str]
    min_in_sync: int
    """Minimum number of members in sync for a message to be acknowledged."""

    def led_by(self, member: str, in_sync: Iterable[str]) -> SetConfig:
        """Return the configuration in which ``member`` begins the next epoch with the members ``in_sync``."""
        return replace(self, epoch=self.epoch + 1, primary=member, in_sync=frozenset(in_sync))

    def with_in_sync(self, in_sync: Iterable[str]) -> SetConfig:
        # The primary asks at each message whether the members in sync should be others, and mostly they should not.
        wanted = frozenset(in_sync)
        return self if wanted == self.in_sync else replace(self, in_sync=wanted)


@dataclass(frozen=True, slots=True)
class RegistryState:
    """The registry's state at one moment, from a read or a watch."""

    config: SetConfig | None
    version: int
    """Grows with each change of the configuration."""
    holder: str | None
    """Member that holds the lease; None if the leadership is vacant."""


class ProposalOutcome(Enum):
    """Outcome of a compare-and-set."""

    DONE = "done"
    LOST = "lost"
    """It was not applied, and never will be: the version was another one."""
    UNKNOWN = "unknown"
    """No answer came. The registry may have applied it, may apply it later, or never."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A compare-and-set that was sent to the registry."""

    number: int
    config: SetConfig
    if_version: int
    if_vacant: bool
    """True if it also requires that no member holds the lease."""


# ---- Epochs of a log: for each leadership the physical offset at which it began to write.
#
# Bytes of two logs are equal up to the end of the newest epoch, number and start, that is in both lists. This
# holds because an epoch has one primary, because a primary gives its epoch a start before it writes, and
# because a follower takes over the primary's list only after it has cut its own log. (RocketMQ keeps an epoch
# whose successor starts at the same offset, and so takes two different histories for one; Kafka: KIP-101 and
# KIP-279.)


class Epoch(NamedTuple):
    """One leadership in a log."""

    number: int
    start: int
    """Physical offset of the first byte that this leadership wrote."""


Epochs = tuple[Epoch, ...]


def last_epoch(epochs: Epochs) -> int:
    return epochs[-1].number if epochs else 0


def common_end(ours: Epochs, our_end: int, theirs: Epochs, their_end: int) -> int:
    """Return the physical offset up to which two logs have the same history, 0 if they have no epoch in common.

    ``our_end``, ``their_end``: physical offsets at which the logs end. The lists may begin with different epochs,
    because the oldest go with the records that retention deletes.
    """
    shared = set(ours) & set(theirs)
    if not shared:
        # Without a common epoch nothing proves that any byte of the two is the same.
        return 0
    newest = max(shared)
    # Either log may end within this epoch, or continue with another leadership.
    return min(_end_of(ours, newest, our_end), _end_of(theirs, newest, their_end))


def _end_of(epochs: Epochs, epoch: Epoch, log_end: int) -> int:
    following = epochs[epochs.index(epoch) + 1 :]
    return min(following[0].start, log_end) if following else log_end


def adopted(ours: Epochs, theirs: Epochs) -> Epochs:
    """Return the epochs of a follower's log that was cut to the primary's history: the primary's, and older ones of
    ``ours`` whose records the primary has deleted."""
    if not set(ours) & set(theirs):
        # The follower's log was cut to nothing, and its epochs went with it.
        return theirs
    return (*(epoch for epoch in ours if epoch.number < theirs[0].number), *theirs)


def without_deleted(epochs: Epochs, log_begin: int) -> Epochs:
    """Return the epochs that have bytes at or above ``log_begin``, and the last one."""
    # An epoch ends where the next one starts; the last one has no end.
    kept = [epoch for epoch, after in pairwise(epochs) if after.start > log_begin]
    return (*kept, *epochs[-1:])
