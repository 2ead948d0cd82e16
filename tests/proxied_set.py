"""A replica set as clients see it: proxies in front of one broker, one of which leads.

The broker is real and its store is what every member would have, so what clients store through one member they find
through the others. The proxies add the role to HELLO's responses, and refuse requests as a member that does not lead.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flintmq.protocol.commands import HELLO
from flintmq.protocol.errors import BrokerError, NotPrimary
from flintmq.protocol.frames import REQUEST, RESPONSE, Frame, FrameParser, encode_frame

if TYPE_CHECKING:
    from tests.conftest import RunningBroker


class Link:
    """One client's connection through a member."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client = client
        self.broker = broker
        self._sending = threading.Lock()

    def send(self, blob: bytes) -> None:
        """Send to the client; both directions' threads may."""
        with self._sending:
            self.client.sendall(blob)

    def end(self) -> None:
        """Close both connections."""
        for sock in (self.client, self.broker):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class Member:
    """A member of the set. ``primary``: the address of the member that it takes for the primary; empty: none."""

    def __init__(self, running: RunningBroker) -> None:
        self.primary = ""
        self.claims_to_lead = False
        """True to say in HELLO that it leads although it refuses requests."""
        self.refusals = 0
        """Number of requests that it refused because it does not lead."""
        self.greetings = 0
        """Number of its responses to HELLO."""
        self._broker = (running.host, running.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._links: list[Link] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

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

    def close(self) -> None:
        """Close every connection and end all threads."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for link in self._links:
            link.end()
        for thread in self._threads:
            thread.join()

    def _refusal(self) -> BrokerError:
        return NotPrimary("this member does not lead the set", primary=self.primary)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            link = Link(client, socket.create_connection(self._broker))
            self._links.append(link)
            for work in (self._carry_requests, self._carry_answers):
                self._threads.append(threading.Thread(target=work, args=[link]))
                self._threads[-1].start()

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
        with link.client, link.broker, contextlib.suppress(OSError):
            for number, frame in enumerate(frames_from(link.broker)):
                if number == 0:
                    self.greetings += 1
                    frame.fields |= {
                        "role": "primary" if self.leads or self.claims_to_lead else "follower",
                        "primary": self.primary,
                    }
                link.send(encoded(frame))


def frames_from(sock: socket.socket) -> Iterator[Frame]:
    """Yield the frames that arrive until the connection ends."""
    parser = FrameParser()
    while True:
        while (frame := parser.next_frame()) is not None:
            yield frame
        if not (count := sock.recv_into(parser.writable())):
            return
        parser.received(count)


def encoded(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    return encode_frame(frame.kind, frame.code, frame.request_id, frame.fields, bytes(frame.body))


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
