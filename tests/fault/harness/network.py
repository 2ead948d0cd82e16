"""A network of hosts on this machine: a network namespace each, one bridge, and packets dropped by pairs of hosts.

This machine is on the network too, with its first address. It needs root and ``ip``; the only way to find out whether
a machine allows namespaces is to try: ``NotHere`` has the error.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from .mounts import NotHere, run

NETWORKS = tuple(ipaddress.ip_network(f"10.77.{number}.0/24") for number in range(64))
"""Networks of which the first unused one is taken: several runs may share a machine."""
_DROP, _LOCAL = "10", "100"
"""Priorities of the rules of routing: packets are dropped before they are looked up as those of the host itself."""


class Host:
    """One host of a network. ``prefix``: words before a command that runs on the host."""

    def __init__(self, bridge: str, name: str, address: str) -> None:
        self.name, self.address = name, address
        self._space, self._link = f"{bridge}-{name}", f"{bridge}{name}"
        self.prefix = ("nsenter", f"--net=/run/netns/{self._space}")
        self._dropped: set[str] = set()

    def make(self, bridge: str) -> None:
        """Create the namespace and connect it. Raises ``NotHere``."""
        run("ip", "netns", "add", self._space)
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._space)
        run("ip", "link", "set", self._link, "master", bridge, "up")
        self._ip("address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip("link", "set", device, "up")
        self._ip("rule", "add", "pref", _LOCAL, "lookup", "local")
        self._ip("rule", "del", "pref", "0")

    def _ip(self, *arguments: str) -> None:
        run("ip", "-n", self._space, *arguments)

    def drop_from(self, others: Iterable[Host]) -> None:
        """Drop every packet that arrives from these hosts, without a word to them."""
        for other in others:
            self._ip("rule", "add", "pref", _DROP, "from", other.address, "blackhole")
            self._dropped.add(other.address)

    def unplug(self) -> None:
        """Pull the cable: the host reaches no other one, this machine included."""
        run("ip", "link", "set", self._link, "down")

    def heal(self) -> None:
        """Plug the cable in, and drop nothing any more."""
        run("ip", "link", "set", self._link, "up")
        while self._dropped:
            self._ip("rule", "del", "pref", _DROP, "from", self._dropped.pop(), "blackhole")

    def remove(self) -> None:
        """Remove the host, as far as it was made. Its processes have ended."""
        for command in (("ip", "link", "del", self._link), ("ip", "netns", "del", self._space)):
            with suppress(NotHere):  # it was not made
                run(*command)


def cut(some: Iterable[Host], others: Iterable[Host]) -> None:
    """Drop every packet between hosts of the two groups, in both directions."""
    some, others = tuple(some), tuple(others)
    for host in some:
        host.drop_from(others)
    for host in others:
        host.drop_from(some)


@contextmanager
def network(names: Iterable[str]) -> Iterator[dict[str, Host]]:
    """Create hosts with these names; remove them at the end. Raises ``NotHere``."""
    bridge, addresses = _bridge()
    hosts = {name: Host(bridge, name, next(addresses)) for name in names}
    try:
        for host in hosts.values():
            host.make(bridge)
        yield hosts
    finally:
        for host in hosts.values():
            host.remove()
        run("ip", "link", "del", bridge)


def _bridge() -> tuple[str, Iterator[str]]:
    """Create a bridge on the first network that is free; return its name, and addresses for hosts."""
    refusal = NotHere("")
    for number, subnet in enumerate(NETWORKS):
        bridge = f"fmq{number}"
        try:
            run("ip", "link", "add", bridge, "type", "bridge")
        except NotHere as refused:  # another run has it, or this machine allows none
            refusal = refused
            continue
        own, *others = map(str, subnet.hosts())
        try:
            run("ip", "address", "add", f"{own}/24", "dev", bridge)
            run("ip", "link", "set", bridge, "up")
        except NotHere:
            run("ip", "link", "del", bridge)
            raise
        return bridge, iter(others)
    raise refusal
