"""A replica set as clients see it: proxies in front of one broker, one of which leads.

The broker is real and its store is what every member would have, so what clients store through one member they find
through the others. The proxies add the role to HELLO's responses, and refuse requests as a member that does not lead.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from flintmq.protocol.commands import HELLO
from flintmq.protocol.errors import BrokerError, NotPrimary
from flintmq.protocol.frames import REQUEST, RESPONSE, encode_frame
from tests.tcp_proxy import Link, TcpProxy, encoded, frames_from

if TYPE_CHECKING:
    from tests.conftest import RunningBroker


class Member(TcpProxy):
    """A member of the set. ``primary``: the address of the member that it takes for the primary; empty: none."""

    def __init__(self, running: RunningBroker) -> None:
        self.primary = ""
        self.claims_to_lead = False
        """True to say in HELLO that it leads although it refuses requests."""
        self.refusals = 0
        """Number of requests that it refused because it does not lead."""
        self.greetings = 0
        """Number of its responses to HELLO."""
        super().__init__(running.host, running.port)

    @property
    def leads(self) -> bool:
        """True if it serves clients."""
        return self.primary == self.address

    def follow(self, primary: str, *, saying_so: bool) -> None:
        """Follow ``primary`` from now on. ``saying_so``: say so on every connection, and close it; otherwise refuse
        each further request."""
        self.primary = primary
        if saying_so:
            for link in self._links:
                with contextlib.suppress(OSError):
                    link.send(encode_frame(RESPONSE, NotPrimary.code, 0, self._refusal().fields()))
                link.end()

    def _refusal(self) -> BrokerError:
        return NotPrimary("this member does not lead the set", primary=self.primary)

    def _carry_requests(self, link: Link) -> None:
        with contextlib.suppress(OSError):
            for frame in frames_from(link.client):
                if self.leads or frame.code == HELLO.code or frame.kind == RESPONSE:
                    link.broker.sendall(encoded(frame))
                elif frame.kind == REQUEST:
                    self.refusals += 1
                    refusal = self._refusal()
                    link.send(encode_frame(RESPONSE, refusal.code, frame.request_id, refusal.fields()))
        link.end()

    def _carry_answers(self, link: Link) -> None:
        with contextlib.suppress(OSError):
            for number, frame in enumerate(frames_from(link.broker)):
                if number == 0:
                    self.greetings += 1
                    frame.fields |= {
                        "role": "primary" if self.leads or self.claims_to_lead else "follower",
                        "primary": self.primary,
                    }
                link.send(encoded(frame))
        link.end()


class ProxiedSet:
    """Members in front of one broker; none leads at first."""

    def __init__(self, running: RunningBroker, members: int = 3) -> None:
        self.members = [Member(running) for _ in range(members)]

    @property
    def addresses(self) -> str:
        """The addresses of all members, as clients take them."""
        return ",".join(member.address for member in self.members)

    def lead(self, number: int | None, *, saying_so: bool = True) -> None:
        """Make a member the primary, or none. ``saying_so``: see ``Member.follow``."""
        primary = "" if number is None else self.members[number].address
        for member in self.members:
            member.follow(primary, saying_so=saying_so and member.leads)

    def close(self) -> None:
        """Close all members."""
        for member in self.members:
            member.close()
