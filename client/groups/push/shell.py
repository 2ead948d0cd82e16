"""The common part of all members: arguments, state and control. Subclasses add the threads or tasks."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Generic, TypeVar, Unpack, overload

from ....protocol.errors import FlintError
from ...connection_log import ConnectionLog
from ...core.hooks import Side
from ...core.rpc.access import AccessOptions, ClientAccess, access_for
from ...core.rpc.address import parse_addresses
from ...errors import ListenerTimeout
from ...sync.pool import Dialer
from .health import Health
from .member_engine import MemberEngine
from .options import Addresses, Options, PushOptions, Subscriptions, check_options

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
        self._timeout = self._options.timeout_seconds
        self._started = False
        connection_log = ConnectionLog(f"group {self.group}", logging.WARNING)
        dialer = Dialer(parse_addresses(addresses), access, connection_log)
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
