"""A channel: queues, exchanges, consumers and acknowledgements.

A queue is a topic, and the group of the same name: its workers share it message by message (the mode ``work``), and it
has dead letters of its own. An exchange has a log, a topic with one queue, for messages that it routes to no such
queue.
A queue that belongs to one process alone (of ``inspect``, ``control`` and events) is not a topic: the process follows
the logs of the exchanges to which it has bound the queue, from then on.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.utils.uuid import uuid

from flintmq.client import (
    CompressionUnavailable,
    Delivery,
    DeliveryLost,
    FlintError,
    ForkedClient,
    GroupConsumer,
    GroupNotExist,
    GroupRunning,
    ListenerTimeout,
    StoredMessage,
    TopicNotExist,
    encode_name,
)

from .envelope import Envelope, Window, check_task, from_message, to_message
from .readers import Binding, ExchangeReader, QueueMember

if TYPE_CHECKING:
    from .transport import Transport

_log = logging.getLogger("flintmq.celery")
RETRY_LEVEL = 1
"""Delay level of a message that is put back: 1 s."""
GET_SECONDS = 2.0
"""Time that ``basic_get`` waits for a message of a queue that has some, which others may be handling."""
LEASE_SECONDS = 10.0
"""Lease of a message, which its worker renews while it lives: after the worker is killed, another waits for it."""
LOG_RETENTION_HOURS = 1
"""Retention of an exchange's log, which is read from its end on."""


class Channel(virtual.Channel):
    """kombu's channel on FlintMQ.

    Transport options: ``queues`` (8): number of queues of a topic that the channel creates; ``group_options``: keyword
    arguments of each ``GroupConsumer``.
    """

    connection: Transport
    do_restore = False
    supports_fanout = True
    body_encoding = None
    from_transport_options = (*virtual.Channel.from_transport_options, "queues", "group_options")
    queues = 8
    group_options: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.window = Window()
        self._readers: dict[str, list[QueueMember | ExchangeReader]] = {}
        self._ending: list[QueueMember] = []
        self._getters: dict[str, GroupConsumer] = {}
        self._unacknowledged: set[str] = set()

    # ---- queues

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> queue_declare_ok_t:
        """Create a queue, or check that it exists (``passive``)."""
        queue = queue or f"amq.gen-{uuid()}"
        known = self.connection.local_queues
        if kwargs.get("exclusive") or (kwargs.get("auto_delete") and not kwargs.get("durable")):
            known.setdefault(queue, [])
        elif kwargs.get("auto_delete") and not passive:
            self.connection.undecided.add(queue)
        if queue in known or queue in self.connection.undecided:
            return queue_declare_ok_t(queue, 0, 0)
        return super().queue_declare(queue, passive, **kwargs)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue with its messages; dead letters stay. A queue that does not exist is not an error."""
        if self.connection.local_queues.pop(queue, None) is None:
            if if_empty and self._size(queue):
                return
            if if_unused and self._is_consumed(queue):
                return
            self._delete(queue)
        for exchange, routing_key, arguments in list(self.state.queue_bindings(queue)):
            self.queue_unbind(queue, exchange, routing_key, arguments)
        self.state.queue_bindings_delete(queue)

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        if not self._has_queue(queue):
            self.connection.clients.admin.create_topic(encode_name(queue), self.queues)
            self.connection.known_topics.add(encode_name(queue))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        topic = encode_name(queue)
        known = self.connection.known_topics
        if topic not in known:
            try:
                self.connection.clients.admin.topic_stats(topic)
            except TopicNotExist:
                return False
            known.add(topic)
        return True

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        admin = self.connection.clients.admin
        self.connection.known_topics.discard(encode_name(queue))
        try:
            admin.delete_topic(encode_name(queue))
            admin.delete_group(encode_name(queue, "group"))
        except (TopicNotExist, GroupNotExist):
            return
        except GroupRunning:
            _log.warning("queue %s was deleted while workers consume it", queue)

    def _size(self, queue: str) -> int:
        return sum(lag for _, _, lag in self._lags(queue))

    def _is_consumed(self, queue: str) -> bool:
        try:
            return self.connection.clients.admin.group(encode_name(queue, "group")).kind != ""
        except GroupNotExist:
            return False

    def _lags(self, queue: str) -> list[tuple[str, dict[int, int], int]]:
        """Return the topics of a queue, its own and the one of its retries: each with the ends of its queues, and with
        the number of messages that wait or are open."""
        admin = self.connection.clients.admin
        topic, group = encode_name(queue), encode_name(queue, "group")
        found = []
        for name in (topic, f"%RETRY%{group}"):
            try:
                rows = admin.consume_stats(group, name, uncommitted=True)
                ends = {row.queue: row.max_offset for row in admin.topic_stats(name)}
            except (GroupNotExist, TopicNotExist):
                continue
            lag = sum(row.lag for row in rows) if rows else sum(row.count for row in admin.topic_stats(name))
            found.append((name, ends, lag))
        return found

    def _purge(self, queue: str) -> int:
        group = encode_name(queue, "group")
        purged = 0
        for topic, ends, lag in self._lags(queue):
            self.connection.clients.admin.reset_offsets(group, topic, ends, force=True)
            purged += lag
        return purged

    # ---- sending

    def basic_publish(self, message: Envelope, exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Send a message to each queue of this broker that the exchange routes it to, else to the exchange's log."""
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            self._put(routing_key, message)
            return
        queues = [queue for queue in self._lookup(exchange, routing_key) if queue not in self.connection.local_queues]
        for queue in queues:
            self._put(queue, message)
        if not queues or self.typeof(exchange).type == "fanout":
            self._put_fanout(exchange, message, routing_key)

    def _put(self, queue: str, message: Envelope, **kwargs: Any) -> None:
        if not self._has_queue(queue):
            self._put_fanout("", message, queue)
            return
        stored = to_message(encode_name(queue), message)
        try:
            self.connection.clients.producer.send(stored)
        except TopicNotExist:  # deleted since it was declared here
            self.connection.known_topics.discard(stored.topic)
            self._new_queue(queue)
            self.connection.clients.producer.send(stored)

    def _put_fanout(self, exchange: str, message: Envelope, routing_key: str, **kwargs: Any) -> None:
        self.connection.clients.producer.send(to_message(self._log_of(exchange), message))

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Return the body in a form that fits into JSON: text as it is, bytes (of pickle, msgpack …) in base64."""
        return (body, None) if isinstance(body, str) else super().encode_body(body, "base64")

    def _log_of(self, exchange: str) -> str:
        """Return the topic that is the log of an exchange; create it first if it does not exist."""
        name = f"{exchange or 'default'}.exchange"
        if not self._has_queue(name):
            self.connection.clients.admin.create_topic(encode_name(name), 1, retention_hours=LOG_RETENTION_HOURS)
        return encode_name(name)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        kind = self.typeof(exchange).type
        self._decide(queue, is_local=kind == "fanout")
        bindings = self.connection.local_queues.get(queue)
        if bindings is not None:
            bindings.append(self._binding(exchange, None if kind == "fanout" else routing_key, pattern))

    def _decide(self, queue: str, *, is_local: bool) -> None:
        """Create a durable queue that is deleted with its consumers, unless it is bound to a fanout: then it is this
        process's copy of what is broadcast (``kombu.common.Broadcast``)."""
        if queue in self.connection.undecided:
            self.connection.undecided.discard(queue)
            if is_local:
                self.connection.local_queues.setdefault(queue, [])
            else:
                self._new_queue(queue)

    def _binding(self, exchange: str, routing_key: str | None, pattern: str | None = None) -> Binding:
        topic = self._log_of(exchange)
        (log,) = self.connection.clients.admin.topic_stats(topic)
        return Binding(topic, log.max_offset, routing_key, pattern)

    # ---- receiving

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        """Receive the messages of a queue until ``basic_cancel``."""
        self._decide(queue, is_local=False)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if no_ack:
            self._unacknowledged.add(queue)
        local = self.connection.local_queues.get(queue)
        if local is None:
            self._readers[consumer_tag] = [self._reader(queue)]
            return
        consumer = self.connection.clients.consumer
        self._readers[consumer_tag] = [
            ExchangeReader(consumer(), binding, functools.partial(self._follow, queue, binding), self._fail)
            for binding in local or [self._binding("", queue)]
        ]

    def basic_cancel(self, consumer_tag: str) -> None:
        """Receive nothing more for this consumer. Its open messages can still be acknowledged."""
        for reader in self._readers.pop(consumer_tag, ()):
            reader.stop()
            if isinstance(reader, QueueMember):
                self._ending = [member for member in self._ending if not member.has_left] + [reader]
        super().basic_cancel(consumer_tag)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages may be unacknowledged."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.window.resize(prefetch_count)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message of a queue, or None if it is empty."""
        if queue not in self._getters:
            self._getters[queue] = self._consumer_of(queue).start()
        for delivery in self._getters[queue].receive(timeout=GET_SECONDS) if self._size(queue) else ():
            tag = self.window.add(delivery)
            envelope = self._readable(queue, delivery.message, tag)
            if envelope is None:
                continue
            message = self.Message(envelope, channel=self)
            if no_ack:
                self.basic_ack(tag)
            else:
                self.qos.append(message, tag)
            return message
        return None

    def _consumer_of(self, queue: str) -> GroupConsumer:
        # A task may take hours: what ends it are Celery's time limits, or the end of its worker.
        options = {"mode": "work", "listener_timeout": math.inf, "max_open": 65_535, **self.group_options}
        if options["mode"] == "work":
            options.setdefault("lease", LEASE_SECONDS)
        return self.connection.clients.group_consumer(encode_name(queue, "group"), encode_name(queue), options)

    def _reader(self, queue: str) -> QueueMember:
        return QueueMember(self._consumer_of(queue), self.window, functools.partial(self._receive, queue), self._fail)

    def _receive(self, queue: str, delivery: Delivery) -> None:
        """Pass a delivery on to the connection's thread. Called on a reader's thread."""
        tag = self.window.add(delivery)
        self.connection.arrivals.add(functools.partial(self._hand_over, queue, delivery.message, tag))

    def _follow(self, queue: str, binding: Binding, message: StoredMessage, handed_over: Callable[[], None]) -> None:
        """Pass a message of an exchange on to the connection's thread. Called on a reader's thread."""

        def hand_over() -> bool:
            handed_over()
            return self._hand_over(queue, message, 0, binding)

        self.connection.arrivals.add(hand_over)

    def _fail(self, error: FlintError) -> None:
        """Have the connection's thread raise an error, so that the program connects again."""

        def raise_it() -> NoReturn:
            raise error

        self.connection.arrivals.add(raise_it)

    def _hand_over(self, queue: str, message: StoredMessage, tag: int, binding: Binding | None = None) -> bool:
        """Call the queue's consumer with a message; returns whether there is one that wants it. ``tag``: 0 if the
        message needs no acknowledgement."""
        callback = None if self.closed else self.connection._callbacks.get(queue)
        envelope = self._readable(queue, message, tag)
        if envelope is None:
            return False
        if binding is not None and not binding.takes(envelope["properties"]["delivery_info"].get("routing_key", "")):
            return False
        if callback is None:  # cancelled since it was received
            self._settle(tag, lambda delivery: delivery.retry(RETRY_LEVEL, "its consumer was cancelled"))
            return False
        if queue in self._unacknowledged:
            self._settle(tag, Delivery.ack)
        callback(envelope)
        return True

    def _readable(self, queue: str, message: StoredMessage, tag: int) -> Envelope | None:
        """Return the envelope in a message. If it cannot be decoded, make it a dead letter and return None."""
        try:
            envelope = from_message(message, tag)
            # As the consumer's callback does, which would end the worker.
            check_task(self.Message({**envelope, "headers": dict(envelope["headers"])}, channel=self))
        except CompressionUnavailable as error:  # another worker may have the library
            reason = str(error)
            _log.error("the message %s of queue %s is put back: %s", message.message_id, queue, reason)
            self._settle(tag, lambda delivery: delivery.retry(0, reason))
            return None
        except Exception as error:  # noqa: BLE001 - foreign bytes may have kombu raise anything
            reason = f"not readable: {str(error) or type(error).__name__}"
            _log.error("the message %s of queue %s is a dead letter: %s", message.message_id, queue, reason)
            self._settle(tag, lambda delivery: delivery.dead(reason))
            return None
        return envelope

    # ---- acknowledgements

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Acknowledge a message, or (``multiple``) all up to it. Raises ``DeliveryLost`` if it is handled again."""
        for tag in self.window.tags(delivery_tag) if multiple else [delivery_tag]:
            self.qos.ack(tag)
            self._settle(tag, Delivery.ack)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Make a message a dead letter, or (``requeue``) have it delivered again in a second."""
        self.qos.ack(delivery_tag)
        if requeue:
            self._settle(delivery_tag, lambda delivery: delivery.retry(RETRY_LEVEL, "put back into the queue"))
        else:
            self._settle(delivery_tag, lambda delivery: delivery.dead("rejected"))

    def basic_recover(self, requeue: bool = False) -> None:
        """Have all open messages delivered again in a second."""
        if not requeue:
            raise ChannelError("FlintMQ cannot redeliver to the same consumer: use recover(requeue=True)")
        for tag in self.window.tags():
            self.basic_reject(tag, requeue=True)

    def _settle(self, tag: int, how: Any) -> None:
        delivery = self.window.take(tag)
        if delivery is not None:
            how(delivery)

    # ---- end

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Have the transport do it: its arrivals are those of all channels."""
        self.connection.drain_events(self.connection, timeout)

    def close(self) -> None:
        """Cancel the consumers and leave their groups. Messages that are not acknowledged go to other members."""
        if not self.closed:
            for reader in [reader for readers in self._readers.values() for reader in readers]:
                reader.close()
            for getter in self._getters.values():
                with contextlib.suppress(ListenerTimeout):
                    getter.close(0)
            for tag in self.window.tags():  # those of cancelled consumers; the others have been given back
                with contextlib.suppress(DeliveryLost, ForkedClient):
                    self._settle(tag, lambda delivery: delivery.retry(RETRY_LEVEL, "its channel was closed"))
            for reader in self._ending:
                reader.close()
        super().close()
