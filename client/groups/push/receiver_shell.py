"""The common part of both group consumers: arguments and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Unpack

from ....protocol.errors import FlintError
from ...core.client_guard import Guard
from ...core.hooks import Hooks
from ...core.rpc.access import AccessOptions
from ...core.rpc.timeouts import wait_seconds
from ...errors import InvalidArgument, ListenerTimeout
from ...sync.pool import Dialer
from .deliveries import Deliveries
from .delivery import Delivery, DeliverySource
from .group_client import Engine
from .member_engine import MemberEngine
from .options import Addresses, ReceiveOptions, Subscriptions, check_receive_options, check_whole
from .shell import MemberShell, split_options
from .work_deliveries import WorkDeliveries
from .work_engine import WorkEngine

_OWN_OPTIONS = ReceiveOptions.__annotations__.keys() - AccessOptions.__annotations__.keys()
RECEIVE_MAX = 1_000_000
"""Maximum number of deliveries to ask for at a time."""


class ReceiverShell(MemberShell):
    """A group consumer without its threads or tasks."""

    _deliveries: DeliverySource

    def __init__(
        self,
        addresses: Addresses | None = None,
        group: str = "",
        topics: Subscriptions = (),
        **options: Unpack[ReceiveOptions],
    ) -> None:
        if options.get("orderly"):
            raise InvalidArgument(
                "orderly is for PushConsumer: a GroupConsumer's messages are settled in any order; use "
                "PushConsumer(orderly=True), which handles the messages of a queue one after the other"
            )
        own, access = split_options(self, options, _OWN_OPTIONS)
        self._options = check_receive_options(group, topics, own)
        self._prepare(addresses, access)

    def _engine_of(
        self, dialer: Dialer, guard: Guard, changed: Callable[[], None], ended: Callable[[FlintError | None], None]
    ) -> MemberEngine:
        """Create the deliveries and their engine. ``changed``, ``ended``: what they call."""
        options = self._options
        if options.leases:
            leased = self._deliveries = WorkDeliveries(options, guard, changed)
            return WorkEngine(options, dialer, leased, ended)
        deliveries = self._deliveries = Deliveries(options, guard, changed)
        deliveries.engine = Engine(options, dialer, deliveries.add, deliveries.recall, deliveries.give_up, ended)
        return deliveries.engine

    def _begun(self, active: Hooks, found: list[Delivery]) -> list[Delivery]:
        """Begin the handling of deliveries, which ends with their settlement or their loss."""
        for delivery in found:
            delivery.handling = active.process(self._side, (delivery.message,), several=False, pushed=False)
        return found

    def _check_receive(self, max_count: Any, timeout: Any) -> float:
        """Return how many seconds to wait; raise if ``receive`` cannot be called, or not with these arguments."""
        check_whole("max_count", max_count, 1, RECEIVE_MAX)
        seconds = math.inf if timeout is None else wait_seconds(timeout)
        self._check_started()
        return seconds

    def _check_started(self) -> None:
        self._check()
        if not self._started:
            raise InvalidArgument("this consumer was not started; call start(), or use it in a with block")

    def _not_settled(self, count: int, seconds: float) -> ListenerTimeout:
        return ListenerTimeout(
            f"group {self.group} had {count} open {'delivery' if count == 1 else 'deliveries'} {seconds:g} s after "
            "close(); their messages go to other consumers of the group"
        )
