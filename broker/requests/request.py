"""One request as its handler sees it: the frame, the client that sent it, and the ways to respond, now or later."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence, Sized
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from ...protocol.commands import COMMANDS, PRODUCE, Audit
from ...protocol.errors import SUCCESS, BrokerError, BrokerFailure, SystemBusy
from ...protocol.fields import encode_fields
from ...protocol.frames import REQUEST, RESPONSE, encode_head
from ...protocol.storage.delivery import DEAD_LETTER_TOPIC_PREFIX
from ..addresses import format_address
from ..background.held_pulls import HELD_PULL_BYTES, Share, Shares
from ..background.loop_work import called_back
from ..config import BUSY_RETRY_AFTER_MS
from ..security.audit import Author
from ..store import InArchive, WouldBlock
from .connected_client import encode_error, nothing

if TYPE_CHECKING:
    from ...protocol.commands import Command, ProduceRequest, PullRequest
    from ...protocol.frames import Frame, FrameParser
    from ..background.held_pulls import HeldPull, Selection
    from ..delivery.pop.service import Wait
    from ..security.audit import AuditLog
    from ..security.users import User
    from ..store import TopicConfig
    from .broker import Broker
    from .connected_client import Bytes, ConnectedClient, ResponseQueue
    from .short_pops import PackedFields, Settling, Wish
    from .short_way import ShortWay


# ---- Deferred requests of one connection: they wait for the dispatch, the disk, messages, or the client to
# read.

COLD_READS_MAX = 2
"""Maximum number of concurrent cold reads of one connection, so that other connections get a thread soon."""
SELECTED_FREE_BYTES = 64 * 1024
"""Selections of a connection's pulls count as additional waiting pulls only above this size."""
HOLDS_MANY = 64
"""Pulls of a connection that holds at least this many are woken after those of other connections."""


class DeferredRequests:
    """The waiting requests of one connection. None of them delays the frames that follow.

    ``on_progress`` is called after each request that was answered after a wait: an ending connection may then close.
    """

    __slots__ = tuple(
        "_broker _responses cold_reads cold_waiting held_pulls on_progress selected steps undispatched waiting".split()
    )

    def __init__(self, broker: Broker, responses: ResponseQueue, on_progress: Callable[[], None]) -> None:
        self._broker = broker
        self._responses = responses
        self.on_progress = on_progress
        self.held_pulls: set[HeldPull | Wait] = set()
        """Held pulls, which are cancelled when the connection closes."""
        self.selected = Shares()
        """Tags and filters of the pulls that wait or search for messages."""
        self.waiting: deque[Callable[[], None]] = deque()
        """Requests that wait for the client to read."""
        self.cold_reads = 0
        self.cold_waiting: list[asyncio.Future[None]] = []
        """Cold reads that wait for the client to read, or for another one to finish."""
        self.undispatched = 0
        """Number of requests that a task handles, or that wait for work that always completes."""
        self.steps = 0
        """Number of requests that wait for their turn."""

    def is_idle(self) -> bool:
        """Return whether no request waits, except held pulls."""
        return not (self.cold_reads or self.undispatched or self.waiting or self.steps)

    def run_waiting(self) -> None:
        """Continue requests that waited for the client to read, or for one of its cold reads to finish."""
        while self.waiting and not self._responses.paused:
            self.waiting.popleft()()
        while self.cold_waiting and not self.reads_must_wait():
            waits = self.cold_waiting.pop(0)
            if not waits.done():
                self.cold_reads += 1
                waits.set_result(None)

    def reads_must_wait(self) -> bool:
        """Return whether a cold read would wait for the client to read, or for another one to finish."""
        return self._responses.paused or self.cold_reads >= COLD_READS_MAX

    async def cold_read(self) -> None:
        """Wait until a cold read may begin, and count it in ``cold_reads``. Raises ``SystemBusy`` if too many wait."""
        if not self.reads_must_wait():
            self.cold_reads += 1
            return
        self.check_may_wait()
        waits = self._broker.loop.create_future()
        self.cold_waiting.append(waits)
        await waits

    def connection_lost(self) -> None:
        """Cancel what waits for messages, or for the client to read."""
        self.cancel_held()
        self.waiting.clear()
        for waits in self.cold_waiting:
            waits.cancel()
        self.cold_waiting.clear()
        self.on_progress = nothing  # as in ``ResponseQueue.discard``

    def holds_many(self) -> bool:
        """Return whether many pulls of this connection are held."""
        return len(self.held_pulls) >= HOLDS_MANY

    def cancel_held(self) -> None:
        """Cancel the held pulls without a response, because the connection closes."""
        for pull in self.held_pulls:
            pull.cancel()
        self.held_pulls.clear()

    def share(self, selection: Selection) -> Share:
        """Return this connection's share of a selection; it counts until it is garbage-collected."""
        return Share(selection, self.selected)

    def check_may_wait(self) -> None:
        """Raise ``SystemBusy`` if too many pulls of this connection, or of all connections, wait."""
        broker = self._broker
        limits = broker.limits
        # They are of different kinds, but each keeps a request in memory.
        waiting = len(self.held_pulls) + len(self.waiting) + self.undispatched + self.steps
        waiting += max(self.selected.bytes - SELECTED_FREE_BYTES, 0) // HELD_PULL_BYTES
        if waiting >= limits.held_pulls_per_connection_max:
            raise self._busy("limits.held_pulls_per_connection_max", limits.held_pulls_per_connection_max)
        held = len(broker.holds) + len(broker.pops.waits) + len(broker.pops.watches)
        if held + broker.selections.bytes // HELD_PULL_BYTES >= limits.held_pulls_max:
            raise self._busy("limits.held_pulls_max", limits.held_pulls_max)

    def _busy(self, limit: str, value: int) -> SystemBusy:
        return SystemBusy(
            f"too many reads are waiting: {limit} is {value}, and reads with long tags or filters count as several; "
            "try again later, or without wait_ms",
            retry_after_ms=BUSY_RETRY_AFTER_MS,
        )


# ---- Audit log entries of requests: changes, and refused requests of all audited commands.


def audit(log: AuditLog, peer: ConnectedClient, command: Command, target: str, **others: Any) -> None:
    """Write an entry about a request of ``peer``. ``others``: see ``AuditLog.write``."""
    log.write(command.name, target, author=author(peer), **others)


def audit_refused(log: AuditLog, peer: ConnectedClient, frame: Frame, error: BrokerError) -> None:
    """Record a failed request if its command is audited."""
    command = COMMANDS.get(frame.code)
    if command is None or command.audit is Audit.NEVER or (command.audit is Audit.BY_HAND and not is_by_hand(frame)):
        return
    fields = frame.fields
    kinds = ("group", "topic", "transaction_id", "drop", "user", "member", "connection")
    names = [f"{kind} {fields[kind]}" for kind in kinds if fields.get(kind)]
    audit(log, peer, command, ", ".join(names) or "the broker", outcome=error.name, reason=error.message)


def is_by_hand(frame: Frame) -> bool:
    """Return whether an operator ends a transaction, or purges or resends dead letters; programs do the same all the
    time with what is their own, and that is not audited."""
    topic = frame.fields.get("topic")
    return frame.fields.get("parked") is True or (type(topic) is str and topic.startswith(DEAD_LETTER_TOPIC_PREFIX))


def author(peer: ConnectedClient) -> Author:
    """Return the client for the audit log."""
    return Author(peer.user_name, format_address(*peer.address), peer.client)


log = logging.getLogger(__name__)
T = TypeVar("T")
Instead: TypeAlias = Callable[[], None] | None
"""Callback to run instead of waiting for memory, or for the client to read."""

_NO_BODY = bytearray()
_KEPT_FIELDS = ("group", "topic", "transaction_id", "parked", "drop")
"""PackedFields of a refused request that the audit log needs."""
RESPONSE_HEAD_BYTES_MAX = 4096
"""Upper bound for the part of a response before its body."""


class KeptHeaders(Protocol):
    """The headers of a connection's frames that later frames may repeat.

    ``served``: number of reads in sequence with nothing but frames that a kernel has served, or would serve.
    """

    served: int

    def __init__(self, broker: Broker) -> None: ...

    @property
    def headers(self) -> Sized:
        """Kept headers; if there is none, ``handle`` need not be called."""

    def handle(self, connection: FrameSource, began: float) -> int:
        """Append and acknowledge frames at the start of the connection's parser; return their number."""

    def clear(self) -> None:
        """Forget all headers; the connection is closed."""

    def keep(self, request: Request, params: ProduceRequest, config: TopicConfig) -> None:
        """Keep the header of a frame whose messages have just been appended to their own topic."""

    def keep_pull(self, request: Request, params: PullRequest) -> None:
        """Keep the header of a pull without tags or a filter that a broker in no replica set has accepted.

        ``params`` may have changed since.
        """

    def pop_fields(self, frame: Frame, count_name: str) -> PackedFields | None:
        """Return the fields of a POP_MESSAGE or ACK_MESSAGE for ``keep_pops``; None if they cannot be kept."""

    def keep_pops(self, fields: PackedFields, purpose: Wish | Settling) -> None:
        """Keep the fields of a frame that a broker in no replica set has accepted."""

    def short_way(self) -> tuple[ShortWay, int]:
        """Return the short way that has served frames of the connection, and its place there."""


class FrameSource(Protocol):
    """The connection that a request came from. All methods belong to the event loop."""

    broker: Broker
    peer: ConnectedClient
    responses: ResponseQueue
    deferred: DeferredRequests
    frame_bytes: int
    """Size of the frame that is being handled, including its length field."""

    @property
    def parser(self) -> FrameParser:
        """Parser of the bytes that arrived."""

    @property
    def repeated(self) -> KeptHeaders:
        """Headers of frames that later frames may repeat."""

    def greet(self, client: str) -> None:
        """Accept all further commands after HELLO, or only AUTH if the broker requires it first."""

    def admit(self, user: User) -> None:
        """Accept all commands from now on, as ``user``."""

    def follow(self) -> None:
        """Accept nothing but the reports of a follower from now on."""

    def turn_away(self, error: BrokerError, request_id: int) -> None:
        """Respond with an error, accept nothing more and close the connection."""

    def finish(self) -> None:
        """Answer all accepted requests, then close the connection."""

    def handle(self, frame: Frame) -> None:
        """Handle a frame, perhaps again: call its command's handler, and respond with the error that it raises."""

    def suspend(self) -> None:
        """Handle nothing more until ``proceed``; the current frame stays valid."""

    def proceed(self, frame: Frame, call: Callable[[], None]) -> None:
        """Continue after ``suspend`` with ``call``, which must not raise."""


class Request:
    """One request, on the event loop. Responses to a connection that is closed are dropped.

    ``responses`` and ``deferred`` belong to the connection: a PRODUCE puts its encoded response there itself.
    """

    __slots__ = ("broker", "deferred", "frame", "peer", "received", "responses", "source", "waits_in_order")

    def __init__(self, source: FrameSource, frame: Frame) -> None:
        self.source = source
        self.frame = self.received = frame
        self.broker = source.broker
        self.peer = source.peer
        self.responses = source.responses
        self.deferred = source.deferred
        self.waits_in_order = False
        """True while its connection handles nothing else."""

    # ---- responding ----

    def respond(self, answer: Any, body: bytes | bytearray = b"") -> None:
        """Respond with SUCCESS, or with an error if ``body`` exceeds the frame limit; a one-way frame gets nothing."""
        frame = self.frame
        if frame.kind != REQUEST:
            self.responses.completed(frame)
            return
        limit = self.broker.limits.frame_bytes_max
        # HELLO has told the client that no frame is longer.
        if len(body) > limit - RESPONSE_HEAD_BYTES_MAX:
            self.fail(BrokerFailure(f"the response has {len(body)} bytes, but limits.frame_bytes_max is {limit}"))
            return
        self.respond_encoded(encode_head(RESPONSE, SUCCESS, frame.request_id, encode_fields(answer), len(body)), body)

    def respond_encoded(self, head: bytes, body: Bytes) -> None:
        """Send an encoded response and record the request's latency."""
        self.responses.send(head, body)
        self.responses.completed(self.frame)

    def fail(self, error: BrokerError) -> None:
        """Respond with an error; audit it if its command is audited."""
        frame, responses = self.frame, self.responses
        self.audit_refused(error)
        responses.count_error(error)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s refused: %s: %s", self.command_name(), error.name, error.message[:200])
        responses.completed(frame)
        if frame.kind == REQUEST:
            self.respond_error(error)
        else:
            self.broker.counters.one_way_errors += 1

    def command_name(self) -> str:
        """Return the name of the request's command, for the log; its code if it is unknown."""
        command = COMMANDS.get(self.frame.code)
        return command.name if command else str(self.frame.code)

    def respond_error(self, error: BrokerError) -> None:
        """Send the response that carries an error, to a PRODUCE in the order of its responses."""
        answer = encode_error(error, self.frame.request_id)
        if self.frame.code == PRODUCE.code:
            self.responses.send_in_order(answer)
        else:
            self.responses.send(answer)

    def fail_unexpectedly(self, error: Exception) -> None:
        """Log an unexpected exception with its traceback, and respond with ``BrokerFailure``."""
        log.error("command %d from %s:%d failed", self.frame.code, *self.peer.address, exc_info=error)
        of_a_file = isinstance(error, OSError) and error.filename is not None
        cause = f"{error}. Check the disk" if of_a_file else type(error).__name__
        self.fail(BrokerFailure(f"the broker failed: {cause}; see its log for details"))

    def refuse(self, error: BrokerError) -> None:
        """Respond with an error, accept nothing more from the client and close the connection."""
        self.source.turn_away(error, self.frame.request_id)

    def audit(self, command: Command, target: str, before: Any = None, after: Any = None) -> None:
        """Record that the client changed ``target``. ``before``, ``after``: JSON values; None if it did not exist."""
        audit(self.broker.audit, self.peer, command, target, before=before, after=after)

    def audit_refused(self, error: BrokerError) -> None:
        audit_refused(self.broker.audit, self.peer, self.frame, error)

    def attempt(self, call: Callable[[], None]) -> None:
        """Call ``call``; an error that it raises becomes the response."""
        try:
            call()
        except BrokerError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - one request must not take its connection, or the broker, down
            self.fail_unexpectedly(error)

    # ---- waiting in order: the connection handles nothing else meanwhile ----

    def wait_in_order(self, waits: Awaitable[T], done: Callable[[T], None]) -> None:
        """Handle nothing more of this connection until ``waits`` is over; then call ``done`` with its result.

        The frame stays valid. An error of either becomes the response. ``waits`` begins at once.
        """
        self.source.suspend()
        self.waits_in_order = True
        self.begin(self._proceed_after(waits, done))

    async def _proceed_after(self, waits: Awaitable[T], done: Callable[[T], None]) -> None:
        outcome: Callable[[], None]
        try:
            outcome = partial(done, await waits)
        except Exception as error:  # noqa: BLE001 - as in ``attempt``, which gets it
            outcome = partial(_raise, error)
        # If there was nothing to wait for, the frame is still being handled.
        await asyncio.sleep(0)
        self.waits_in_order = False
        self.source.proceed(self.received, lambda: self.attempt(outcome))

    def has_topics(self, configs: Sequence[TopicConfig]) -> bool:
        """Return whether the topics exist; if not, create them, and then handle the frame again."""
        topics, pending = self.broker.store.topics, self.broker.topic_changes.pending
        if all(topics.get(each.name) is not None and each.name not in pending for each in configs):
            return True
        self.handle_again_after(self.broker.writer.topics_exist(configs))
        return False

    def handle_again_after(self, waits: Awaitable[None]) -> None:
        """Do what ``wait_in_order`` does, and then handle the frame again."""
        self.wait_in_order(waits, lambda _: self.source.handle(self.received))

    async def in_order(self, waits: Awaitable[T]) -> T:
        """Return the result of ``waits``; the connection handles nothing else meanwhile, and the frame stays valid."""
        self.source.suspend()
        self.waits_in_order = True
        try:
            result = await waits
        finally:
            self.waits_in_order = False
            self.source.proceed(self.received, lambda: None)
        self.check_client()
        return result

    # ---- waiting while later frames of the connection are handled ----

    def release_frame(self) -> None:
        """Drop the body and all header fields except ``_KEPT_FIELDS``.

        A waiting frame must not keep the receive buffer alive, nor memory for unknown fields that the client sent.
        """
        frame = self.frame
        frame.buffer = _NO_BODY
        frame.fields = {name: frame.fields[name] for name in _KEPT_FIELDS if name in frame.fields}

    def after_dispatch(self, call: Callable[[], None]) -> None:
        """Call ``call`` after ``dispatched``, for pulls and pops: no task is made unless it waits."""
        if self.broker.dispatch.is_done():
            call()
        else:
            self.begin(_afterwards(self.dispatched(), call))

    def check_may_save(self) -> None:
        """Raise ``SystemBusy`` if a change of a group would wait and too many requests wait. Before the change."""
        if self.broker.group_changes.pending:
            self.deferred.check_may_wait()

    def after_saved(self, call: Callable[[], None]) -> None:
        """Call ``call`` after ``saved``, for pops: no task is made unless it waits."""
        if self.broker.group_changes.pending:
            self.begin(_afterwards(self.saved(), call))
        else:
            call()

    def step(self, call: Callable[[], None], instead: Instead = None) -> None:
        """Call ``call`` in a later turn of the loop that has time for it; an error that it raises becomes the response.

        If the client does not read, the call waits for it, or ``instead`` is called at once; see ``read``.
        """
        self.release_frame()
        self.deferred.steps += 1
        self.broker.turns.add(lambda: self._step(call, instead))

    def _step(self, call: Callable[[], None], instead: Instead) -> None:
        self.deferred.steps -= 1
        if self.peer.lost:
            return
        # As long as a client does not read, no more responses are made for it.
        if not self.responses.paused:
            self._attempt_late(call)
        elif instead is not None:
            self._attempt_late(instead)
        else:
            self.deferred.waiting.append(lambda: self._attempt_late(call))

    def _attempt_late(self, call: Callable[[], None]) -> None:
        """Attempt ``call`` outside of the connection's turn, which may have been all that an ending one waited for."""
        self.attempt(call)
        self.deferred.on_progress()

    def in_reader(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Call ``call`` in a reader thread; return its future, which belongs to the loop."""
        return self.broker.loop.run_in_executor(self.broker.readers, call)

    def read_then(self, read: Callable[[bool], T], done: Callable[[T], None], instead: Instead = None) -> None:
        """Do what ``read`` does for pulls and pops, and pass the result to ``done``; no task is made unless it waits.

        Errors of ``read`` and ``done`` become the response. A caller that already has part of a response passes
        ``instead``: it is called instead of waiting for memory, or for the client to read.
        """
        self._attempt_late(lambda: self._read_then(read, done, instead))

    def _read_then(self, read: Callable[[bool], T], done: Callable[[T], None], instead: Instead) -> None:
        async def late(reading: Coroutine[Any, Any, T]) -> None:
            done(await reading)

        if self.broker.send_memory.may_read(self.responses):
            try:
                result = read(True)
            except WouldBlock as where:
                if instead is not None and self.deferred.reads_must_wait():
                    instead()
                else:
                    self.begin(late(self._read_cold(read, where)))
            else:
                done(result)
        elif instead is not None:
            instead()
        else:
            self.begin(late(self.read(read)))

    # ---- waiting by coroutines ----

    def begin(self, handling: Coroutine[Any, Any, None]) -> None:
        """Run a handler up to its first wait; a task does the rest, while later frames of the connection are handled.

        A handler that need not wait makes no task. What it raises before its first wait is raised here; a later error
        becomes the response. At each wait, except one in order, the frame's body and fields go.
        """
        try:
            waits = handling.send(None)
        except StopIteration:
            return
        if not self.waits_in_order:
            self.release_frame()
        self.deferred.undispatched += 1
        tasks = self.broker.tasks
        task = self.broker.loop.create_task(self._finish(handling, waits))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _finish(self, handling: Coroutine[Any, Any, None], waits: Any) -> None:
        try:
            await self._resumed(handling, waits)
        except ClientLost:
            pass
        except BrokerError as error:
            if not self.peer.lost:
                self.fail(error)
        except Exception as error:  # noqa: BLE001 - as in ``attempt``
            self.fail_unexpectedly(error)
        finally:
            self.deferred.undispatched -= 1
            if not self.peer.lost:
                self.deferred.on_progress()

    @types.coroutine
    def _resumed(self, handling: Coroutine[Any, Any, None], waits: Any) -> Generator[Any, Any, None]:
        """Continue a coroutine that waits for the future ``waits``."""
        with contextlib.suppress(StopIteration):
            while True:
                try:
                    yield waits
                except BaseException as error:  # noqa: BLE001 - that of what it waits for, or of its task's cancellation
                    waits = handling.throw(error)
                else:
                    waits = handling.send(None)
                if not self.waits_in_order:
                    self.release_frame()

    def check_client(self) -> None:
        """Raise ``ClientLost`` if the connection was closed, so that nothing more is read for it."""
        if self.peer.lost:
            raise ClientLost

    async def dispatched(self) -> None:
        """Wait until everything acknowledged by now is visible. Raises ``SystemBusy`` if too many requests wait.

        Dispatch runs after the acknowledgement, but every client must find a message that has been acknowledged.
        """
        if not self.broker.dispatch.is_done():
            self.deferred.check_may_wait()
            await called_back(self.broker.dispatch.when_done)
            self.check_client()

    async def written(self) -> None:
        """Wait until everything written by now is acknowledged and visible. Raises the error of a failed flush."""
        self.deferred.check_may_wait()
        await self.broker.writer.acknowledged(self.broker.store.write_offset)
        await self.dispatched()

    async def replicated(self) -> None:
        """Wait until a change that a person made would survive a failover."""
        await called_back(self.broker.when_replicated)

    async def saved(self) -> None:
        """Wait until what groups must not forget is on disk and would survive a failover. Raises the error if it cannot
        be written."""
        changes = self.broker.group_changes
        if changes.pending:
            await called_back(changes.when_saved)

    async def read(self, read: Callable[[bool], T]) -> T:
        """Return ``read(True)``; if that would block, ``read(False)`` of a reader thread, or of one of the archive's.

        Waits first until there is memory for a response. Raises ``SystemBusy`` if too many requests wait.
        """
        await self._memory()
        try:
            return read(True)
        except WouldBlock as where:
            return await self._read_cold(read, where)

    async def _memory(self) -> None:
        """Wait until there is memory for a response."""
        memory = self.broker.send_memory
        while not memory.may_read(self.responses):
            self.deferred.check_may_wait()
            await called_back(memory.wait)
            self.check_client()

    async def _read_cold(self, read: Callable[[bool], T], where: WouldBlock) -> T:
        """Return ``read(False)`` of a reader thread, or of one of the archive's if ``where`` says so."""
        broker, deferred = self.broker, self.deferred
        while True:
            archive = broker.archived_reads if isinstance(where, InArchive) else None
            gate = broker.cold_reads if archive is None else archive.gate
            threads = broker.readers if archive is None else archive.threads
            await deferred.cold_read()
            try:
                self.check_client()
                await called_back(gate.when_free)
                try:
                    self.check_client()
                    # Otherwise memory became short while it waited for the thread, which is for another read.
                    if broker.send_memory.may_read(self.responses):
                        result = await broker.loop.run_in_executor(threads, read, False)
                        self.check_client()
                        return result
                except InArchive as signal:
                    where = signal
                finally:
                    # Later, when the result is counted: see ``ColdReads``.
                    broker.loop.call_soon(gate.release)
            finally:
                deferred.cold_reads -= 1
                broker.loop.call_soon(deferred.run_waiting)
            await self._memory()


def _raise(error: Exception) -> None:
    raise error


async def _afterwards(waits: Awaitable[None], call: Callable[[], None]) -> None:
    await waits
    call()


class ClientLost(Exception):
    """The connection that a request came from is closed: nothing more is read for it."""
