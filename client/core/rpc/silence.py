"""How long a call waits on a connection from which nothing arrives."""

from __future__ import annotations

from math import inf
from typing import Protocol

from .address import Address
from .connection_errors import silent
from .timeouts import silence_seconds_max


class Probed(Protocol):
    """A connection of either driver."""

    @property
    def address(self) -> Address:
        """The broker's address."""

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
