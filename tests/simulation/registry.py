"""A registry of three nodes that answers late, loses answers, applies requests long after it was asked, and is away at
times, as a whole or one of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from flintmq.broker.replication.core.configuration import Proposal, ProposalOutcome, RegistryState, SetConfig

if TYPE_CHECKING:
    from .world import World

REGISTRY = "registry"
"""The registry's name in the network."""
ANSWER_SECONDS = 2.0
"""Time after which a member takes a request for unanswered."""


@dataclass(slots=True)
class Lease:
    """A member's lease for an epoch."""

    member: str
    epoch: int
    until: float


@dataclass(slots=True)
class Node:
    """One node of the registry: an access to what all of them agree on."""

    away: bool = False
    late: float = 0.0
    """Seconds that each request and each answer through it take longer, so that a watch tells what was true before."""


class Registry:
    """One configuration with a version, and one lease. Requests go to its nodes in turn, a watch stays at one."""

    def __init__(self, world: World, config: SetConfig, lease_s: float) -> None:
        self._world = world
        self._random: Random = world.random
        self._lease_s = lease_s
        self._lease: Lease | None = None
        self.config: SetConfig = config
        self.version = 1
        self.away = False
        self.nodes = (Node(), Node(), Node())
        self._turn = 0
        self.unknown = 0.0
        """Probability that a change is applied late or never, and not answered."""
        self.waiting: list[SetConfig] = []
        """Configurations that may still be applied."""

    @property
    def state(self) -> RegistryState:
        """Configuration and holder of the lease now."""
        held = self._lease is not None and self._world.now < self._lease.until
        return RegistryState(self.config, self.version, self._lease.member if held and self._lease else None)

    # ---- requests of members ----

    def read(self, member: str, answer: Callable[[RegistryState], object]) -> None:
        """Answer with the state, or not at all."""
        self._request(member, lambda: self._respond(member, partial(answer, self.state)))

    def propose(self, member: str, proposal: Proposal, answer: Callable[[ProposalOutcome, int], object]) -> None:
        """Apply a compare-and-set, soon, late or never; say that the outcome is unknown unless the answer arrives."""
        respond = self._once(answer, ProposalOutcome.UNKNOWN, 0)

        def apply() -> None:
            self.waiting.remove(proposal.config)
            outcome = self._compare_and_set(proposal)
            self._respond(member, partial(respond, outcome, self.version))

        self.waiting.append(proposal.config)
        if self._random.random() < self.unknown:
            if self._random.random() < 0.3:
                self.waiting.remove(proposal.config)  # lost on its way
            else:
                self._world.after(self._random.uniform(0.0, 30.0), apply)
        else:
            self._request(member, apply, lambda: self.waiting.remove(proposal.config))

    def hold(self, member: str, epoch: int, answer: Callable[[bool | None], object]) -> None:
        """Give or renew the lease, if the configuration names member and epoch; None is the answer if none arrives."""
        respond = self._once(answer, None)

        def apply() -> None:
            held = (self.config.primary, self.config.epoch) == (member, epoch)
            if held:
                self._lease = Lease(member, epoch, self._world.now + self._lease_s)
                self._world.after(self._lease_s + 0.001, self._notify)
            self._respond(member, partial(respond, held))

        self._request(member, apply)

    def release(self, member: str, epoch: int) -> None:
        """End a lease."""

        def apply() -> None:
            if self._lease is not None and (self._lease.member, self._lease.epoch) == (member, epoch):
                self._lease = None
                self._notify()

        self._request(member, apply)

    # ---- inside ----

    def _compare_and_set(self, proposal: Proposal) -> ProposalOutcome:
        if proposal.if_version != self.version or (proposal.if_vacant and self.state.holder is not None):
            return ProposalOutcome.LOST
        self._world.judge.configured(self.config, proposal.config)
        self.config = proposal.config
        self.version += 1
        self._notify()
        return ProposalOutcome.DONE

    def _notify(self) -> None:
        for number, member in enumerate(self._world.members.values()):
            # A watch ends with its process: the next one must not be told what was true before it.
            node = self.nodes[number % len(self.nodes)]
            self._respond(member.name, partial(member.registry_state, member.life, self.state), node)

    def _once(self, answer: Callable[..., object], *otherwise: object) -> Callable[..., None]:
        """Return a function that answers, once; without a call, the answer is ``otherwise`` after a while."""
        answered = False

        def respond(*found: object) -> None:
            nonlocal answered
            if not answered:
                answered = True
                answer(*found)

        self._world.after(ANSWER_SECONDS, respond, *otherwise)
        return respond

    def _request(self, member: str, apply: Callable[[], object], lost: Callable[[], object] | None = None) -> None:
        self._turn += 1
        node = self.nodes[self._turn % len(self.nodes)]

        def arrive() -> None:
            if not self.away and not node.away and self._world.network.reaches(member, REGISTRY):
                apply()
            elif lost is not None:
                lost()

        self._world.after(self._world.network.delay() + node.late, arrive)

    def _respond(self, member: str, respond: Callable[[], object], node: Node | None = None) -> None:
        node = node or self.nodes[self._turn % len(self.nodes)]

        def arrive() -> None:
            if not self.away and not node.away and self._world.network.reaches(REGISTRY, member):
                respond()

        self._world.after(self._world.network.delay() + node.late, arrive)
