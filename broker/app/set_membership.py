"""The broker's place in the replica set that the settings name."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from ...protocol.errors import BrokerError, ConfigurationError
from ..background.services import CleanCommitLogService
from ..config import Settings
from ..replication.core.stream import Patience
from ..replication.member.replica_member import ReplicaMember, identity_of, registry_of
from ..replication.member.tables import tables_of
from ..requests.broker import Broker
from ..store import MessageStore, RecoveryReport
from ..store.tables.store_state import ReplicaRecord

log = logging.getLogger(__name__)


class BrokerLife(Protocol):
    """The life of the broker that is a member. ``ended``: set to end it."""

    ended: asyncio.Event

    async def restore_delivery(self) -> None:
        """Restore the parts of delivery from the store."""

    def start_delivery(self) -> None:
        """Begin to deliver, and to serve clients."""

    def turn_away(self, error: BrokerError) -> None:
        """Refuse every request that waits with ``error``, and end all connections."""

    def fatal(self, part: str, error: BaseException) -> None:
        """End the process."""


class SetMembership:
    """The duties of a broker as a member of a set. ``patience`` outlives it: see ``Patience``."""

    def __init__(self, settings: Settings, patience: Patience | None, life: BrokerLife) -> None:
        self._settings = settings
        self._identity = identity_of(settings)
        self.patience = patience or Patience(self._identity.limits)
        self._life = life
        self._loop = asyncio.get_running_loop()
        self._member: ReplicaMember | None = None
        self._leading: asyncio.Task[None] | None = None
        self._broker: Broker
        self._retention: CleanCommitLogService

    async def join(
        self, store: MessageStore, broker: Broker, retention: CleanCommitLogService, report: RecoveryReport
    ) -> None:
        """Become a member of the set; the broker is a follower until the member calls ``lead``.

        Raises ``ConfigurationError`` if the store belongs to another member.
        """
        membership = self._identity
        record = store.replica.state.record
        if record.member not in ("", membership.member):
            raise ConfigurationError(
                f"replication.member = {membership.member!r}, but {store.path} is the store of member "
                f"{record.member!r}: set that id, or use an empty store"
            )
        if report.quarantined:
            log.error("a part of the log is damaged: this member copies the whole log from the primary again")
            empty = ReplicaRecord(record.cluster_id, membership.member)
            await self._loop.run_in_executor(None, store.replica.state.save, empty)
        self._broker, self._retention = broker, retention
        # Until the primary says where its log begins, this member deletes nothing.
        retention.follow(store.min_physical_offset)
        tables = tables_of(store, retention.follow)
        registry = registry_of(self._settings)
        member = ReplicaMember(membership, store, broker.flush, tables, registry, self.patience, self, self._loop)
        self._member = broker.member = member
        broker.dispatch.replicate, broker.dispatch.follows = member.appended, True
        broker.when_replicated = broker.topic_changes.replicate = member.when_tables_are_saved
        broker.group_changes.replicate = member.when_tables_are_saved
        member.start()

    def lead(self) -> None:
        """Begin to serve clients as the primary."""
        self._leading = self._loop.create_task(self._lead())
        self._leading.add_done_callback(self._led)

    async def _lead(self) -> None:
        broker, member = self._broker, self._member
        assert member is not None

        # The parts of delivery are restored from queues and index, so these must have the whole log.
        while not broker.dispatch.is_done():
            dispatched = asyncio.Event()
            broker.dispatch.when_done(dispatched.set)
            await dispatched.wait()
        # As after a crash: the log may have more than the tables say, because another primary wrote both.
        broker.store.ended_clean = False
        broker.store.consumer_offsets.clamp(broker.store.queue_reads.end_offset)
        await self._life.restore_delivery()
        self._retention.follow(None)
        broker.dispatch.follows = False
        # Before the delivery, whose appends the store would refuse.
        member.serve()
        self._life.start_delivery()

    def _led(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._life.fatal("the beginning of a leadership", error)

    def step_down(self, error: BrokerError) -> None:
        """Serve no client any more, at once."""
        if self._leading is not None:
            self._leading.cancel()
        self._life.turn_away(error)

    def reopen(self, reason: str) -> None:
        """Have the store closed and opened again."""
        log.info("the store is opened again: %s", reason)
        self._life.ended.set()

    def fatal(self, part: str, error: BaseException) -> None:
        self._life.fatal(part, error)

    async def stop(self) -> None:
        """Leave the set in order; a primary hands the leadership over."""
        if self._member is not None:
            await self._member.stop()
