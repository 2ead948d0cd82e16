"""The configuration of a replica set, as the registry keeps it: who leads, and which members hold every acknowledged
message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum


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
        """Return the same leadership with other members in sync."""
        return replace(self, in_sync=frozenset(in_sync))


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
