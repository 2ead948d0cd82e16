"""Start and stop of a broker: bind the port, open the store, start the services, open the port; and the reverse."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ...protocol.errors import BrokerError, ConfigurationError
from ...protocol.storage.delivery import PREPARED_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from ...protocol.storage.record import encode_host
from ..addresses import format_address, is_loopback, parse_address, unmapped
from ..background.flush import GroupCommitService, flush_service
from ..background.held_pulls import PullRequestHoldService
from ..background.loop_work import Service, StepScheduler
from ..background.services import (
    AllocateMappedFileService,
    CheckpointService,
    CleanCommitLogService,
    ReputMessageService,
    StoreStatsService,
)
from ..config import METRICS_OFF, SEQUENCE_RECOVERY_BYTES, Settings
from ..delivery.staged import table_at_start
from ..delivery.transactions.service import History
from ..metrics.endpoint import Hosts, MetricsEndpoint, listen_for_metrics
from ..net.server import Listener, Server, bind
from ..requests.broker import Broker, BrokerProcess, BrokerSecurity, StoreServices
from ..security.audit import AuditLog
from ..security.backoff import LoginBackoff
from ..security.tls import TlsFiles
from ..security.users import Authenticator, UserTable
from ..store import MessageStore, RecoveryReport

if TYPE_CHECKING:
    from ...protocol.storage.archive.manifest import ArchiveManifest
    from ...protocol.storage.archive.objects import Objects
    from ..archive.reads import ArchivedReads
    from ..remoting.gateway import RemotingGateway
    from ..replication.core.stream import Patience
    from .set_membership import SetMembership

log = logging.getLogger(__name__)

WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
"""Topics whose new messages wake the delivery of scheduled records."""

REOPEN_TIMEOUT_MS = 200
"""Maximum time that connections get to end when the store is opened again."""

Progress = Callable[[str, int, int], None]
"""Callback for progress of the start: stage, amount done, total amount."""


class Lifecycle:
    """One broker from start to stop, on a running loop.

    ``fatal`` is called on the loop if the broker cannot continue, with the name of the part that failed and the
    exception; it ends the process.
    """

    def __init__(
        self, settings: Settings, fatal: Callable[[str, BaseException], None], patience: Patience | None = None
    ) -> None:
        self._settings = settings
        self.ended = asyncio.Event()
        """Set when the broker must be stopped and started again: its role in a replica set has changed, or the log."""
        self._is_stopping = False
        self._set: SetMembership | None = None
        if settings.replication.set:
            # Late, because a broker on its own needs none of these modules.
            from .set_membership import SetMembership

            self._set = SetMembership(settings, patience, self)
        self._fatal = fatal
        self._loop = asyncio.get_running_loop()
        self._store: MessageStore | None = None
        self._services: list[Service] = []
        self._broker: Broker | None = None
        self._server: Server | None = None
        self._gateway: RemotingGateway | None = None
        self._authenticator: Authenticator | None = None
        self._tls: TlsFiles | None = None
        self._archive: Objects | None = None
        if settings.archive.url:
            # Late, because a broker without an archive needs none of it.
            from ..archive.uploader import open_archive

            self._archive = open_archive(settings.archive)
        self._archived_reads: ArchivedReads | None = None
        self._readers = ThreadPoolExecutor(settings.server.reader_threads, thread_name_prefix="reader")
        metrics = settings.metrics
        hosts = Hosts("" if metrics.listen == METRICS_OFF else metrics.listen, metrics.hosts)
        self._audit = AuditLog(settings.log.audit)
        self._endpoint = MetricsEndpoint(self._loop, self._readers, hosts)
        self.address = ("", 0)
        """Host and port that the broker is bound to."""
        self.remoting_address = ("", 0)
        """Host and port that RocketMQ's clients connect to; empty if there is no such port."""
        self._advertised = ("", 0)
        """Host and port in the ids of messages."""

    def successor(self) -> Lifecycle:
        """Return the broker that starts after this one has stopped, on the same port."""
        server = self._settings.server.model_copy(update={"listen": format_address(*self.address)})
        remoting = self._settings.remoting
        if remoting.listen:
            remoting = remoting.model_copy(update={"listen": format_address(*self.remoting_address)})
        settings = self._settings.model_copy(update={"server": server, "remoting": remoting})
        return Lifecycle(settings, self._fatal, self._set.patience if self._set is not None else None)

    @property
    def metrics_address(self) -> str:
        """HOST:PORT of the metrics endpoint, or an empty string."""
        address = self._endpoint.address
        return format_address(*address) if address is not None else ""

    async def start(self, progress: Progress) -> RecoveryReport:
        """Start the broker; the port is open when this returns.

        ``progress`` is called from another thread from time to time; an exception that it raises ends the start.
        Raises ``FlintError`` if the port cannot be bound or the store cannot be opened.
        """
        settings = self._settings
        path = Path(settings.store.path).expanduser()  # noqa: ASYNC240 - nothing else runs on the loop yet
        self._load_security(path)
        # Bound before recovery, so that a port in use is reported at once; clients can connect only after ``start``.
        sockets = bind(settings.server.listen)
        remoting = bind(settings.remoting.listen, "remoting.listen") if settings.remoting.listen else []
        try:
            host, port = sockets[0].getsockname()[:2]
            self.address = (host, port)
            self._advertised = advertised(settings.server.advertise, host, port)
            if remoting:
                # RocketMQ's clients ask the address in a message's id for the message, so ids name this one.
                self.remoting_address = remoting[0].getsockname()[:2]
                self._advertised = advertised(settings.remoting.advertise, *self.remoting_address)
            await self._endpoint.open(listen_for_metrics(settings.metrics.listen, port))
            if remoting and settings.remoting.vip_channel:
                remoting += bind_vip_channel(parse_address(settings.remoting.listen)[0], self.remoting_address[1])
            store = MessageStore(
                path, settings.store_settings(), store_host=encode_host(*self._advertised), steady_clock=True
            )

            def recovering(stage: str, done: int, total: int) -> None:
                self._endpoint.starting(stage, done, total)
                progress(stage, done, total)

            report = await self._loop.run_in_executor(None, store.open, recovering)
            if self._archive is not None and not store.state.archive_id:
                await self._loop.run_in_executor(None, store.state.identify, os.urandom(16).hex())
            self._store = store
            await self._loop.run_in_executor(None, store.topic_retention.step, store.clock.seen_ms())
            store.on_failure = lambda failure: self._fatal("writing the log", failure)
            broker = self._start_services(store, report)
            if self._set is None:
                await self.restore_delivery()
                self.start_delivery()
            else:
                await self._set.join(store, broker, self._retention, report)

            # Last, so that a client that can connect finds everything ready.
            self._server = Server(broker, [Listener(sockets), *self._remoting_listeners(broker, remoting)])
            self._server.start()
            if self._gateway is not None:
                self._gateway.start()
            self._endpoint.started(broker, self._services)
        except BaseException:
            self._endpoint.close()
            for sock in (*sockets, *remoting):
                sock.close()
            raise
        return report

    def _remoting_listeners(self, broker: Broker, sockets: list[socket.socket]) -> list[Listener]:
        """Return the listener for RocketMQ's clients; none if ``remoting.listen`` is empty."""
        if not sockets:
            return []
        from ..remoting.connection import remoting_listener
        from ..remoting.gateway import RemotingGateway

        self._gateway = RemotingGateway(broker, self._advertised)
        return [remoting_listener(self._gateway, sockets)]

    def _load_security(self, store_path: Path) -> None:
        """Load users and certificates. Raises ``ConfigurationError`` if they cannot be used."""
        security = self._settings.security
        if security.tls_certificate:
            self._tls = TlsFiles(security.tls_certificate, security.tls_key, security.tls_client_ca, security.tls_min)
        if security.auth == "off":
            return
        users = UserTable(store_path)
        users.load()
        self._authenticator = Authenticator(users, LoginBackoff(self._loop.time, self._loop.call_at))
        if not len(users):
            log.warning(
                "there are no users yet, and the broker requires authentication; create the first administrator with "
                "`flintmq user add NAME --admin --generate --store %s`",
                store_path,
            )
        if self._tls is None and not is_loopback(parse_address(self._settings.server.listen)[0]):
            log.warning(
                "server.listen = %s without TLS: passwords are safe, but anyone on the network path can read and "
                "change messages; set security.tls_certificate and security.tls_key",
                self._settings.server.listen,
            )
        remoting = self._settings.remoting.listen
        if self._tls is None and remoting and not is_loopback(parse_address(remoting)[0]):
            log.warning(
                "remoting.listen = %s without TLS: anyone on the network path can read messages, and can send a signed "
                "request again, because a signature has no time; set security.tls_certificate and security.tls_key",
                remoting,
            )

    def reload(self) -> None:
        """Read users and certificates again, on SIGHUP."""
        if self._server is not None:
            self._server.look_at_files(force=True)

    async def restore_delivery(self) -> None:
        """Read from the log what delivery keeps in memory: everything in the log must be dispatched."""
        store, broker, limits = self._store, self._broker, self._settings.limits
        assert store is not None
        assert broker is not None
        runs = await self._loop.run_in_executor(
            None, store.producer_runs.tail, SEQUENCE_RECOVERY_BYTES, limits.sequence_runs_max
        )
        transactions = await self._loop.run_in_executor(None, History(store).read_at_start)
        staged = await self._loop.run_in_executor(None, table_at_start, store)
        broker.transactions.restore(transactions)
        broker.staged.restore(staged)
        broker.sequences.restore(runs, time.monotonic())
        broker.pops.restore()

    def _start_services(self, store: MessageStore, report: RecoveryReport) -> Broker:
        loop, fatal = self._loop, self._fatal
        holds = PullRequestHoldService(
            loop.time, loop.call_at, StepScheduler(loop.time, loop.call_soon), store.queue_reads.tags_codes
        )

        def dispatched(touched: list[tuple[str, int, int]]) -> None:
            holds.wake_queues(touched)
            # The services run a little earlier than there is a broker.
            if self._broker is not None:
                self._broker.pops.arrived(touched)
                topics = {topic for topic, _, _ in touched}
                for topic in WAITING_TOPICS.intersection(topics):
                    self._broker.delays.dispatched(topic)
                if PREPARED_TOPIC in topics and self._broker.staged.pending:
                    self._broker.staged.wake()
                self._broker.dispatch.run_waiting()

        # A service that fails ends the process through ``fatal``, called on the loop.
        post = loop.call_soon_threadsafe
        allocation = AllocateMappedFileService(store, post, fatal)
        flush = flush_service(store, post, fatal)
        if isinstance(flush, GroupCommitService):
            flush.use_compiled_thread(loop)
        reput = ReputMessageService(store, post, dispatched, fatal)
        checkpoint = CheckpointService(store, post, fatal)
        # ``seen_ms`` is the clock for other threads, such as that of this service.
        retention = CleanCommitLogService(
            store, self._settings.retention, post, fatal, clock=lambda: store.clock.seen_ms() / 1000
        )
        stats = StoreStatsService(store, self._settings.retention, flush, checkpoint, post, fatal)
        # Until the delays are loaded, any record may still have to be delivered, so retention must not delete one.
        store.expiry.oldest_timed = lambda: store.min_physical_offset
        if self._settings.retention.until_archived:
            store.expiry.archived_to = self._archived_offset
            store.expiry.may_leave_gap = self._settings.archive.on_full == "gap"
        self._services = [allocation, flush, reput, checkpoint, retention, stats]
        for service in self._services:
            service.start()
        self._broker = Broker(
            self._settings,
            StoreServices(store, flush, reput, allocation, stats),
            holds,
            BrokerSecurity(self._audit, self._authenticator, self._tls),
            BrokerProcess(loop, self._readers, fatal, report.seconds, self.metrics_address),
        )

        if self._archive is not None:
            self._start_archived_reads(store, self._broker)
        # These need the broker, which needs the services.
        flush.on_flushed = self._broker.flushed
        self._broker.stall.start()
        self._broker.when_settings_change += [
            lambda settings: retention.change(settings.retention),
            lambda settings: setattr(stats, "retention", settings.retention),
            lambda settings: logging.getLogger().setLevel(settings.log.level.upper()),
        ]
        self._checkpoint, self._retention = checkpoint, retention
        return self._broker

    def _start_archived_reads(self, store: MessageStore, broker: Broker) -> None:
        """Let clients read what only the archive has."""
        from ...protocol.storage.archive.objects import Objects
        from ..archive.reads import DEADLINE_S, ArchivedReads

        def written() -> ArchiveManifest | None:
            return broker.archive.manifest if broker.archive is not None else None

        reads = ArchivedReads(Objects(self._settings.archive.url, deadline_s=DEADLINE_S), written)
        broker.archived_reads = self._archived_reads = reads
        store.queue_reads.archived = reads
        store.pulls.archived = reads
        store.queries.archived = reads

    def _archived_offset(self) -> int:
        """Return the physical offset below which the log is archived, as far as it is known. Any thread."""
        service = self._broker.archive if self._broker is not None else None
        return service.archived_offset if service is not None else 0

    def start_delivery(self) -> None:
        """Deliver delayed messages, and commit staged transactions, from now on."""
        store, broker = self._store, self._broker
        assert store is not None
        assert broker is not None
        delays = broker.delays
        delays.start()
        self._checkpoint.also.append(delays.persist)
        broker.staged.start(self._fatal)
        self._checkpoint.also.append(broker.staged.persist)
        broker.pops.start(self._fatal)
        self._checkpoint.also.append(store.pop_state.persist)
        store.expiry.oldest_timed = delays.oldest_timed
        self._retention.roll = lambda end_offset: self._loop.call_soon_threadsafe(delays.roll_below, end_offset)
        if self._archive is not None:
            self._start_archiving(store, broker, self._archive)

    def _start_archiving(self, store: MessageStore, broker: Broker, objects: Objects) -> None:
        """Copy the log into the archive from now on."""
        from ..archive.lineage import Writer, process_id
        from ..archive.uploader import ArchiveService
        from ..replication.member.tables import archived_tables

        replication = self._settings.replication
        store_id, epoch = store.state.archive_id, 0
        if broker.member is not None:
            config = broker.member.replica.config
            assert config is not None, "a member that leads has a configuration"
            store_id, epoch = config.cluster_id, config.epoch
        writer = Writer(
            store_id, replication.set, epoch, process_id(os.getpid()), self._settings.store.commitlog_file_bytes
        )
        service = ArchiveService(
            store,
            self._settings.archive,
            objects,
            writer,
            archived_tables(store),
            self._loop.call_soon_threadsafe,
            self._fatal,
        )
        broker.archive = service
        self._services.append(service)
        broker.when_settings_change.append(lambda settings: setattr(service, "settings", settings.archive))
        service.start()

    def use_compiled_kernels(self) -> None:
        """Begin what only compiled kernels do, if they have been compiled since the start: short sends, flushes in a
        compiled thread. Only for the loop."""
        if self._broker is None or self._is_stopping:
            return
        self._broker.begin_short_ways()
        if isinstance(self._broker.flush, GroupCommitService):
            self._broker.flush.use_compiled_thread(self._loop)

    async def stop(self) -> None:
        """Stop whatever was started, in order: connections, services, store. A closed store has no abort file."""
        self._is_stopping = True
        self._endpoint.stopping()
        if self._set is not None:
            # First, because a primary hands over while its followers are still connected.
            await self._set.stop()
        if self._gateway is not None:
            await self._gateway.stop()
        if self._server is not None:
            # The clients of a member that is opened again have been turned away already.
            timeout_ms = REOPEN_TIMEOUT_MS if self.ended.is_set() else self._settings.server.stop_timeout_ms
            await self._server.stop(timeout_ms / 1000)
        if self._broker is not None:
            # Delivery appends, so it ends before the services that flush and dispatch.
            self._broker.stall.stop()
            await self._broker.delays.stop()
            await self._broker.pops.stop()
            await self._broker.staged.stop()
            self._broker.transaction_checks.stop()
            self._broker.transactions.stop()
            self._broker.reput.stop_on_loop()
            for way in (self._broker.short_sends, self._broker.short_pops):
                if way is not None:
                    way.close()
        await self._loop.run_in_executor(None, self._close)
        self._endpoint.close()

    def _close(self) -> None:
        # The store is closed last, because services and tables still write to it.
        if self._broker is not None:
            self._broker.topic_changes.close()
        # Reads use files of the store and state of the services.
        self._readers.shutdown()
        if self._archived_reads is not None:
            self._archived_reads.close()
        for service in reversed(self._services):
            service.stop()

        # After the last flush, because progress is saved only for what is on disk.
        if self._broker is not None:
            self._broker.delays.persist(last=True)
            self._broker.transactions.close()
            self._broker.staged.close()
            self._broker.pops.close()
        if self._store is not None:
            self._store.close()
        self._audit.close()

    def turn_away(self, error: BrokerError) -> None:
        """Serve no client any more, at once: requests that wait get ``error``, and connections end."""
        if self._broker is not None:
            self._broker.flush.give_up(error)
            self._broker.topic_changes.give_up(error)
            self._broker.group_changes.give_up(error)
        if self._server is not None:
            self._server.turn_away(error)

    def fatal(self, part: str, error: BaseException) -> None:
        self._fatal(part, error)

    def hurry(self) -> None:
        """Close all connections now instead of waiting for them."""
        if self._server is not None:
            self._server.cut()


def bind_vip_channel(host: str, port: int) -> list[socket.socket]:
    """Return sockets of the port two below ``port``, where clients expect RocketMQ's brokers for their VIP channel.

    Returns none if the port is in use, and logs it: then such clients must switch the channel off.
    """
    try:
        return bind(format_address(host, port - 2), "remoting.listen, less 2")
    except ConfigurationError as error:
        log.warning("no VIP channel for RocketMQ's clients (remoting.vip_channel): %s", error)
        return []


def advertised(advertise: str, host: str, port: int) -> tuple[str, int]:
    """Return the address and port that the broker's records name: the setting, else the address it listens on.

    If the broker listens on every interface, use the address of the interface with the default route.
    """
    if advertise:
        host, port = parse_address(advertise, default_port=port)
    try:
        address = ipaddress.ip_address(unmapped(host))
    except ValueError:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return str(found[0][4][0]), port
    if not address.is_unspecified:
        return str(address), port
    return _outgoing_address(address.version), port


def _outgoing_address(version: int) -> str:
    # Addresses reserved for documentation (RFC 3849, RFC 5737): any address outside of the local network will do.
    family, remote = (socket.AF_INET6, "2001:db8::1") if version == 6 else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((remote, 9))  # sends nothing: connecting a datagram socket only selects a route
            return str(probe.getsockname()[0])
        except OSError:
            return "::1" if version == 6 else "127.0.0.1"
