"""The state that all RocketMQ clients share: names and addresses that routes tell, and the consumers of each group."""

from __future__ import annotations

import asyncio

from ..addresses import format_address
from ..net.connection import ClientConnection
from ..requests.broker import Broker, RemotingFigures
from .figures import SAMPLE_S, TrafficFigures
from .name_server import NameServerRole
from .registration import NameServerRegistrations, parse_name_servers
from .sends import Stamps
from .unique_keys import UniqueKeys


class RemotingGateway:
    """The gateway of one broker; belongs to the event loop. ``address``: advertised host and port of its listener."""

    def __init__(self, broker: Broker, address: tuple[str, int]) -> None:
        self.broker_name = broker.settings.server.name
        self.cluster = broker.settings.remoting.cluster
        self.reply_topic = f"{self.cluster}_REPLY_TOPIC"
        """Topic that clients send replies to; they are passed on, not stored."""
        self.address = format_address(*address)
        self.names = NameServerRole(broker, self.cluster, self.broker_name, address)
        self.figures = TrafficFigures(broker.counters, broker.loop.time, broker.store.write_offset)
        name_servers = parse_name_servers(broker.settings.remoting.name_servers)
        self._registrations = NameServerRegistrations(broker, self.names, name_servers)
        self._next_sample: asyncio.TimerHandle | None = None
        self.open_routes = broker.settings.open_routes
        """True if questions for routes need no signature."""
        self._broker = broker
        self.stamps = Stamps(self.cluster, all_of_them=broker.settings.remoting.stamp_properties)
        self.unique_keys = UniqueKeys()
        self.consumers = broker.groups.clients
        self.connections: set[ClientConnection] = set()
        broker.remoting_figures = self._figures

    def _figures(self) -> RemotingFigures:
        # A copy, because a reader thread collects the figures while the loop continues.
        connections = self.connections.copy()
        held_pulls = sum(len(each.deferred.held_pulls) for each in connections)
        return RemotingFigures(len(connections), held_pulls, *self._registrations.count())

    def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Set the committed offset of a group, also backwards; ignore it if it is older than a reset by an operator.

        Raises ``GroupKind`` or ``LimitReached``.
        """
        broker = self._broker
        if self.consumers.was_reset(group, (topic, queue)):
            return
        self.consumers.check_may_consume(group)
        broker.groups.check_may_commit(group, ((topic, queue),))
        broker.groups.ensure_group(group)
        broker.store.consumer_offsets.commit(group, topic, queue, offset)

    def start(self) -> None:
        """Sample the traffic, and register with the name servers, from now on."""
        self._sample_later()
        self._registrations.start()

    def _sample_later(self) -> None:
        self._next_sample = self._broker.loop.call_later(SAMPLE_S, self._sample)

    def _sample(self) -> None:
        self.figures.sample()
        self._sample_later()

    async def stop(self) -> None:
        """End what runs in the background."""
        if self._next_sample is not None:
            self._next_sample.cancel()
        await self._registrations.stop()
