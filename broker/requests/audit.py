"""Audit log entries of requests: changes, and refused requests of all audited commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...protocol import commands
from ...protocol.storage.delivery import DEAD_LETTER_TOPIC_PREFIX
from ..addresses import format_address
from ..security.audit import Author

if TYPE_CHECKING:
    from ...protocol.commands import Command
    from ...protocol.errors import BrokerError
    from ...protocol.frames import Frame
    from ..security.audit import AuditLog
    from ..store import TopicConfig
    from .connected_client import ConnectedClient

_AUDITED = {
    command.code: command
    for command in (
        commands.UPDATE_AND_CREATE_TOPIC,
        commands.DELETE_TOPIC_IN_BROKER,
        commands.DELETE_SUBSCRIPTIONGROUP,
        commands.INVOKE_BROKER_TO_RESET_OFFSET,
        commands.UPDATE_BROKER_CONFIG,
        commands.GET_BROKER_CONFIG,
        commands.END_TRANSACTION,
        commands.ABORT_PREPARED,
        commands.UPDATE_CONSUMER_OFFSET,
        commands.AUTH_CREATE_USER,
        commands.AUTH_UPDATE_USER,
        commands.AUTH_DELETE_USER,
        commands.AUTH_LIST_USER,
        commands.SWITCH_PRIMARY,
        commands.CHANGE_MEMBERS,
        commands.CLOSE_CONNECTION,
    )
}


_OFTEN_BY_PROGRAMS = (commands.END_TRANSACTION, commands.UPDATE_CONSUMER_OFFSET)


def audit(log: AuditLog, peer: ConnectedClient, command: Command, target: str, **others: Any) -> None:
    """Write an entry about a request of ``peer``. ``others``: see ``AuditLog.write``."""
    log.write(command.name, target, author=author(peer), **others)


def audit_refused(log: AuditLog, peer: ConnectedClient, frame: Frame, error: BrokerError) -> None:
    """Record a failed request if its command is audited."""
    command = _AUDITED.get(frame.code)
    if command is None or (command in _OFTEN_BY_PROGRAMS and not is_by_hand(frame)):
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


def topic_values(config: TopicConfig | None) -> dict[str, Any] | None:
    """Return a topic's values for ``before`` or ``after``."""
    if config is None:
        return None
    attributes = config.extra.get("attributes")
    return {
        **({"attributes": attributes} if attributes else {}),
        "read_queues": config.read_queues,
        "write_queues": config.write_queues,
        "perm": config.perm,
        "order": config.order,
        "retention_hours": config.retention_hours,
        "retention_bytes": config.retention_bytes,
    }


def author(peer: ConnectedClient) -> Author:
    """Return the client for the audit log."""
    return Author(peer.user_name, format_address(*peer.address), peer.client)
