"""The common part of all members: arguments, state and control. Subclasses add the threads or tasks."""

from __future__ import annotations

import logging
import math
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from types import FrameType, TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack, overload

from ....protocol.errors import FlintError
from ...aio.rpc import Dialer
from ...aio.runtime import ClientRuntime
from ...core.client_guard import Guard
from ...core.hooks import Side
from ...core.rpc.access import AccessOptions, ClientAccess, access_for
from ...core.rpc.address import parse_addresses
from ...core.rpc.timeouts import wait_seconds
from ...endpoint import ConnectionLog
from ...errors import InvalidArgument, ListenerTimeout
from .delivery import Deliveries, DeliverySource
from .group_client import Engine, MemberEngine
from .options import (
    Addresses,
    Options,
    PushOptions,
    ReceiveOptions,
    Subscriptions,
    check_options,
    check_receive_options,
    check_whole,
)
from .outcome import Health
from .work_deliveries import WorkDeliveries
from .work_engine import WorkEngine

MessageListenerT = TypeVar("MessageListenerT")
BatchListenerT = TypeVar("BatchListenerT")

_OWN_OPTIONS = PushOptions.__annotations__.keys() - AccessOptions.__annotations__.keys()


def split_options(
    client: object, options: Mapping[str, Any], own: Collection[str]
) -> tuple[dict[str, Any], ClientAccess]:
    """Return those of ``options`` whose names are in ``own``, and the access that the others describe. Raises
    ``InvalidArgumentType`` for an unknown one."""
    others = {name: value for name, value in options.items() if name not in own}
    return {name: options[name] for name in options.keys() - others.keys()}, access_for(client, others, own)


class MemberShell(ABC):
    """A member of a group without its threads or tasks."""

    _options: Options

    def _prepare(self, addresses: Addresses | None, access: ClientAccess) -> None:
        """Create the engine. ``_options`` must be set."""
        self._timeout = self._options.timeout
        self._started = False
        connection_log = ConnectionLog(f"group {self.group}", logging.WARNING)
        life = ClientRuntime(type(self).__name__)
        dialer = Dialer(parse_addresses(addresses), access, connection_log, life)
        self._side = Side(self.member, dialer.addresses, self.group)
        self._engine: MemberEngine = self._new_engine(dialer)

    @abstractmethod
    def _new_engine(self, dialer: Dialer) -> MemberEngine:
        """Create the engine with its callbacks; called once, after the options are checked."""

    @abstractmethod
    def _check(self) -> None:
        """Raise if the consumer cannot be used, or has ended with an error."""

    @property
    def group(self) -> str:
        """The group's name."""
        return self._options.group

    @property
    def member(self) -> str:
        """This member's name."""
        return self._options.member

    def health(self) -> Health:
        """Return the consumer's current state and counters."""
        return self._engine.health()

    def pause(self, *topics: str) -> None:
        """Stop pulling these topics, or all if none is given; messages already pulled are still handled."""
        self._check()
        self._engine.set_paused(self._engine.paused | (frozenset(topics) or frozenset(self._options.subscriptions)))

    def resume(self, *topics: str) -> None:
        """Continue to pull these topics, or all if none is given."""
        self._check()
        self._engine.set_paused(self._engine.paused - frozenset(topics) if topics else frozenset())

    # ---- errors

    def _not_started(self) -> InvalidArgument:
        return InvalidArgument("this consumer was not started; call start(), or use it in a with block")

    def _not_joined(self) -> FlintError:
        """Return the reason why the consumer did not join its group in time."""
        trouble = self._engine.health().trouble
        return trouble or ListenerTimeout(f"could not join group {self.group} within {self._timeout:g} s")

    def _not_confirmed(self) -> ListenerTimeout:
        return ListenerTimeout(f"the broker did not confirm the progress of group {self.group} in time")


class ConsumerShell(MemberShell, Generic[MessageListenerT, BatchListenerT]):
    """A push consumer without its threads or tasks."""

    WORKERS: ClassVar[int]
    """Default of ``workers``."""

    @overload
    def __init__(
        self,
        addresses: Addresses,
        group: str,
        topics: Subscriptions,
        listener: MessageListenerT,
        *,
        batch: None = None,
        **options: Unpack[PushOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        addresses: Addresses = ...,
        *,
        group: str,
        topics: Subscriptions,
        listener: MessageListenerT,
        batch: None = None,
        **options: Unpack[PushOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        addresses: Addresses,
        group: str,
        topics: Subscriptions,
        listener: BatchListenerT,
        *,
        batch: int,
        **options: Unpack[PushOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        addresses: Addresses = ...,
        *,
        group: str,
        topics: Subscriptions,
        listener: BatchListenerT,
        batch: int,
        **options: Unpack[PushOptions],
    ) -> None: ...
    def __init__(
        self,
        addresses: Addresses | None = None,
        group: str = "",
        topics: Subscriptions = (),
        listener: MessageListenerT | BatchListenerT | None = None,
        *,
        batch: int | None = None,
        **options: Unpack[PushOptions],
    ) -> None:
        own, access = split_options(self, options, _OWN_OPTIONS)
        self._listener = self._check_listener(listener)
        self._options = check_options(group, topics, batch, {"workers": self.WORKERS, **own})
        self._prepare(addresses, access)

    @staticmethod
    @abstractmethod
    def _check_listener(listener: Any) -> Callable[[Any], Any]:
        """Return the listener; raises unless it is of a kind that this consumer calls."""

    def _not_returned(self, seconds: float) -> ListenerTimeout:
        return ListenerTimeout(
            f"{self._engine.health().running} listeners of group {self.group} did not return within {seconds:g} s; "
            "their messages are redelivered to other members"
        )


# ---- The common part of both group consumers: arguments and errors.

_RECEIVER_OPTIONS = ReceiveOptions.__annotations__.keys() - AccessOptions.__annotations__.keys()
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
        own, access = split_options(self, options, _RECEIVER_OPTIONS)
        self._options = check_receive_options(group, topics, own)
        self._prepare(addresses, access)

    def _engine_of(
        self, dialer: Dialer, guard: Guard, changed: Callable[[], None]
    ) -> tuple[MemberEngine, DeliverySource]:
        """Return the engine and its deliveries. ``changed``: called after a change that receivers may wait for."""
        options = self._options
        engine: MemberEngine
        deliveries: DeliverySource
        if options.leases:
            deliveries = WorkDeliveries(options, guard, changed)
            engine = WorkEngine(options, dialer, deliveries)
        else:
            deliveries = Deliveries(options, guard, changed)
            engine = deliveries.engine = Engine(options, dialer, deliveries.add, deliveries.recall, deliveries.give_up)
        engine.ended.add_done_callback(lambda _: deliveries.end(abandon=True))
        return engine, deliveries

    def _check_receive(self, max_count: Any, timeout: Any) -> float:
        """Return how many seconds to wait; raise if ``receive`` cannot be called, or not with these arguments."""
        check_whole("max_count", max_count, 1, RECEIVE_MAX)
        seconds = math.inf if timeout is None else wait_seconds(timeout)
        self._check_started()
        return seconds

    def _check_started(self) -> None:
        self._check()
        if not self._started:
            raise self._not_started()

    def _not_settled(self, count: int, seconds: float) -> ListenerTimeout:
        return ListenerTimeout(
            f"group {self.group} had {count} open {'delivery' if count == 1 else 'deliveries'} {seconds:g} s after "
            "close(); their messages go to other consumers of the group"
        )


# ---- Signals that close a consumer gracefully.

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
WAIT_SECONDS_MAX = 1.0
"""Maximum wait of the main thread. A signal that comes just before it, or to another thread of the process, does not
end it, and on Windows none does: Python handles a signal only between two waits."""


class StopSignals:
    """Within the block the first SIGTERM or SIGINT calls ``stop``; the next one has the effect it had before the block.

    ``stop`` runs between any two steps of the main thread, so it must not take a lock. Only the main thread of a
    program receives signals: in another thread nothing changes. A signal that the program ignores stays ignored.
    ``received``: the first signal, None before.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self.received: signal.Signals | None = None
        self._stop = stop
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in STOP_SIGNALS:
            previous = signal.getsignal(number)
            if previous not in (None, signal.SIG_IGN):  # None: set by non-Python code, so it could not be restored
                self._previous[number] = previous
                signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
            self._stop()
            return
        self._restore()
        signal.raise_signal(number)
