"""A network of connections: messages arrive late and in order, or stay on the way while a direction is cut."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from flintmq.broker.replication.core.messages import Message
from flintmq.protocol.commands import ReplicateTableRequest

from .disk import Record

if TYPE_CHECKING:
    from .member import Member
    from .world import World

CONNECT_SECONDS = 1.0
"""Time after which an attempt to connect to a host that does not answer fails."""
RESEND_SECONDS = 0.3
"""Time after which a message is sent again over a cut direction."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message and the records that belong to it, a part of a table, or the end of the connection."""

    message: Message | ReplicateTableRequest | None
    records: tuple[Record, ...] = ()
    tables: int = 0
    """With a position: number of the last version of a table that is on disk with all before it."""
    body: bytes = b""


@dataclass(slots=True)
class End:
    """One member's end of a connection."""

    member: Member
    life: int
    """The process that opened it: a later one of the same member knows nothing of it."""
    number: int
    """The member's own number of the connection."""
    open: bool = True
    arriving: deque[Parcel] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class Connection:
    """A connection between two members; a parcel that is sent from one end arrives at the other."""

    opener: End
    accepter: End

    def other(self, end: End) -> End:
        """Return the opposite end."""
        return self.accepter if end is self.opener else self.opener


class Network:
    """The network between members and registry."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random: Random = world.random
        self._cut: set[tuple[str, str]] = set()
        self.slowness = 0.002
        """Mean time that a message takes, in seconds."""

    def cut(self, one: str, other: str) -> None:
        """Let nothing of ``one`` reach ``other``."""
        self._cut.add((one, other))

    def heal(self, pairs: set[tuple[str, str]] | None = None) -> None:
        """Let everything through again, or only these directions."""
        self._cut -= self._cut.copy() if pairs is None else pairs

    def reaches(self, one: str, other: str) -> bool:
        """Return whether a packet of ``one`` arrives at ``other``."""
        return (one, other) not in self._cut

    def delay(self) -> float:
        """Return the time that the next message takes."""
        return self._random.expovariate(1.0 / self.slowness)

    def connect(self, opener: Member, number: int, name: str) -> None:
        """Open a connection; both ends learn of it, or the opener that it failed."""
        accepter, life = self._world.members[name], opener.life

        def arrive() -> None:
            if not (self.reaches(opener.name, name) and self.reaches(name, opener.name)) or not accepter.host_is_up:
                self._world.after(CONNECT_SECONDS, opener.closed, life, number, False)
            elif not accepter.runs:
                self._world.after(self.delay(), opener.closed, life, number, True)
            else:
                accepted = accepter.accept(opener.name)
                connection = Connection(End(opener, life, number), End(accepter, accepter.life, accepted))
                accepter.connections[accepted] = connection
                self._world.after(self.delay(), opener.connected, life, number, connection)

        self._world.after(self.delay(), arrive)

    def send(self, connection: Connection, sender: Member, parcel: Parcel) -> None:
        """Send a parcel from the end that belongs to ``sender``."""
        origin = connection.opener if connection.opener.member is sender else connection.accepter
        target = connection.other(origin)
        if parcel.message is None:
            origin.open = False
        target.arriving.append(parcel)
        self._world.after(self.delay(), self._deliver, origin, target)

    def _deliver(self, origin: End, target: End) -> None:
        if not target.arriving:
            return
        if not self.reaches(origin.member.name, target.member.name):
            self._world.after(RESEND_SECONDS, self._deliver, origin, target)
            return
        parcel = target.arriving.popleft()
        if target.open:
            target.open = parcel.message is not None
            target.member.received(target.life, target.number, parcel)
        # Nothing runs at the other end: its host resets the connection.
        if (
            parcel.message is not None
            and target.life != target.member.life
            and origin.open
            and target.member.host_is_up
        ):
            origin.open = False
            self._world.after(self.delay(), origin.member.closed, origin.life, origin.number, False)
