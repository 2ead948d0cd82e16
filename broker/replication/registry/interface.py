"""Interface of a registry to the driver of a member."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ..core.configuration import Proposal, ProposalOutcome, RegistryState


@dataclass(frozen=True, slots=True)
class RegistryView:
    """The registry at one moment: the core's part of it, and the addresses, which the core does not know."""

    state: RegistryState
    addresses: Mapping[str, str]
    """Address of each member, ``host:port``."""


@dataclass(frozen=True, slots=True)
class ProposalAnswer:
    """Answer to a proposal."""

    outcome: ProposalOutcome
    version: int = 0
    """Version of the configuration if the proposal is done, else 0."""
    reason: str = ""
    """Why the outcome is unknown."""


class LeaseAnswer(Enum):
    """Answer to a request for the lease."""

    HELD = "held"
    REFUSED = "refused"
    """The configuration does not name this member and epoch."""
    UNKNOWN = "unknown"
    """No answer came. The lease may have been taken or renewed; ask again."""


class Registry(Protocol):
    """The configuration and the lease of one replica set. The caller makes at most one call of ``hold_lease`` or
    ``release_lease`` at a time; the other methods may run concurrently."""

    async def read(self) -> RegistryView:
        """Return configuration and holder of the lease as of one moment after the call (linearizable). Raise
        ``RegistryError`` if no endpoint answers."""

    async def propose(self, proposal: Proposal, addresses: Mapping[str, str]) -> ProposalAnswer:
        """Replace the configuration by compare-and-set. ``addresses`` has that of every member; others are dropped.
        A change is sent once. ``RegistryError``: it is not applied, and never will be."""

    async def hold_lease(self, member: str, epoch: int) -> LeaseAnswer:
        """Take or renew the lease, if the configuration names this member and epoch; the lease of an earlier epoch is
        replaced. If it is held, it is so from the moment of the call on, for the registry's
        ``lease_s``. ``RegistryError``: a person must act, or the registry holds what cannot be read."""

    async def release_lease(self) -> None:
        """Give the lease back, if one is held; without an answer it ends by itself after its time. Never raises."""

    def watch(self) -> AsyncGenerator[RegistryView, None]:
        """Yield the present view, then a view after each change; several changes may give one view. It continues
        through every failure; close it with ``aclose``."""
