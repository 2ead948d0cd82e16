"""The state that all RocketMQ clients share: names and addresses that routes tell, and the consumers of each group."""

from __future__ import annotations

from ..addresses import format_address
from ..requests.broker import Broker
from .consumer_clients import ConsumerClients
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
        self.open_routes = broker.settings.open_routes
        """Whether questions for routes need no signature."""
        self._broker = broker
        self.stamps = Stamps(self.cluster, all_of_them=broker.settings.remoting.stamp_properties)
        self.unique_keys = UniqueKeys()
        self.consumers = ConsumerClients(broker.loop.time, broker.limits.groups_max)

    def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Set the committed offset of a group, also backwards. Raises ``LimitReached``."""
        broker = self._broker
        broker.groups.check_may_commit(group, topic, (queue,))
        broker.groups.ensure_group(group)
        broker.store.consumer_offsets.commit(group, topic, queue, offset)
