"""Connection failures as errors for the caller, the same from every driver."""

from __future__ import annotations

import os
from math import inf
from typing import Protocol

from ....protocol.errors import AuthenticationFailed, ConnectionFailed, FlintError, NotPrimary, RequestTimeout
from .address import Address
from .operation import is_retriable
from .timeouts import silence_seconds_max


def unreachable(address: Address, error: OSError) -> ConnectionFailed:
    return ConnectionFailed(
        f"cannot reach a broker at {address}: {reason_of(error)}; is it running? (flintmq-broker serve starts one)"
    )


def no_hello(address: Address, seconds: float) -> ConnectionFailed:
    return ConnectionFailed(f"the broker at {address} did not answer HELLO within {seconds:.1f} s")


def no_broker(address: Address, error: FlintError) -> ConnectionFailed:
    """Return the error for a server that speaks another protocol."""
    return ConnectionFailed(f"the server at {address} is not a FlintMQ broker: {error}")


def broke(address: Address, error: OSError) -> ConnectionFailed:
    return ConnectionFailed(f"the connection to the broker at {address} broke: {reason_of(error)}")


def closed_there(address: Address) -> ConnectionFailed:
    return ConnectionFailed(f"the broker at {address} closed the connection")


def closed_here(address: Address) -> ConnectionFailed:
    return ConnectionFailed(f"the connection to the broker at {address} was closed")


def leads_no_longer(address: Address, refusal: NotPrimary) -> ConnectionFailed:
    """Return the error for a connection whose broker said that it does not lead its replica set."""
    error = ConnectionFailed(f"the broker at {address} does not lead its replica set: {refusal}")
    error.__cause__ = refusal
    return error


def not_greeted(error: FlintError, *, tls: bool) -> ConnectionFailed:
    """Return the error for a connection that was lost before HELLO was answered."""
    perhaps = (
        "the broker may require a certificate (tls_certificate, tls_key), or not accept this one"
        if tls
        else "the broker may require TLS (tls=True)"
    )
    return ConnectionFailed(f"{error}, instead of answering HELLO; {perhaps}")


def silent(address: Address, seconds: float) -> ConnectionFailed:
    """Return the error for a connection on which the broker has been silent for too long."""
    return ConnectionFailed(f"nothing has come from the broker at {address} for {seconds:.3g} s")


def unanswered(address: Address, command: str, seconds: float) -> RequestTimeout:
    return RequestTimeout(f"the broker at {address} did not answer {command} within {seconds:g} s")


def no_address_answered(failures: dict[Address, FlintError]) -> FlintError:
    """Return the error if no address could be used. A permanent refusal by one of several addresses is the result only
    if all refuse permanently, or if the others follow it: the primary of a replica set refuses the password. Empties
    ``failures``, which is a local of a frame in the traceback of the error."""
    failure, *others = several = list(failures.values())
    refused = next((error for error in several if isinstance(error, AuthenticationFailed)), None)
    if refused is not None and any(isinstance(error, NotPrimary) for error in several):
        failure = refused
    elif isinstance(failure, NotPrimary) or (others and any(map(is_retriable, several))):
        failure = ConnectionFailed("; ".join(map(str, several)))
        failure.__cause__ = next((error for error in several if isinstance(error, NotPrimary)), several[0])
    failures.clear()  # a reference from that local would be a cycle
    return failure


def reason_of(error: OSError) -> str:
    """Return the operating system's description of an error, because asyncio puts its own into ``strerror``."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__


# ---- How long a call waits on a connection from which nothing arrives.


class Probed(Protocol):
    """A connection of either driver."""

    @property
    def address(self) -> Address: ...

    @property
    def active_at(self) -> float:
        """When bytes last arrived, or left after they had to wait: seconds of the driver's clock."""

    def probe(self) -> None:
        """Send a request that the broker answers at once, whatever else it owes a response to."""


class SilenceLimit:
    """The silence that a wait for a response bears; the wait begins at ``now`` and may take ``seconds``.

    A tunnel, a proxy or a NAT that has forgotten a connection takes its bytes, and nothing comes back. The system sees
    nothing wrong with it, and a slow response looks the same. So a quarter of the time after the last byte the
    connection is probed, and after another quarter without a byte it is given up: half of the time is left for a new
    one. Neither takes longer than ``silence_seconds_max`` allows. ``role``: that of a member of a replica set, if the
    wait is a producer's: there a probe would prove nothing, because another member may lead by now.

    Call ``check`` only after the driver has read what has arrived.
    """

    __slots__ = ("_probed_at", "_probes", "_share", "_since")

    def __init__(self, seconds: float, now: float, role: str = "") -> None:
        self._since = now
        self._share = share_seconds(seconds, role)
        self._probes = not role
        self._probed_at = -inf

    def check(self, connection: Probed, now: float) -> float:
        """Return after how many seconds to check again; sends a probe if one is due. Raises ``ConnectionFailed`` if the
        connection has been silent for too long."""
        since = max(self._since, connection.active_at)
        if not self._probes:
            due = since + 2 * self._share
        elif self._probed_at <= since:
            due = since + self._share
            if now >= due:
                connection.probe()
                self._probed_at = now
                due = now + self._share
        else:
            due = self._probed_at + self._share
        if now >= due:
            raise silent(connection.address, now - since)
        return due - now


def share_seconds(seconds: float, role: str = "") -> float:
    """Return for how long a wait of ``seconds`` need not be checked."""
    return max(0.0, min(seconds / 4, silence_seconds_max(role) / 2))
