"""What handlers write to the audit log: what was changed, and (for every command that is audited) what was refused."""

from __future__ import annotations

from typing import Any

from ....protocol import commands
from ....protocol.commands import Command
from ....protocol.errors import BrokerError
from ....protocol.frames import Frame
from ...setting_rules import format_address
from ...store import TopicConfig
from .context import Peer

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
        commands.AUTH_CREATE_USER,
        commands.AUTH_UPDATE_USER,
        commands.AUTH_DELETE_USER,
        commands.AUTH_LIST_USER,
    )
}


def audit(peer: Peer, command: Command, target: str, before: Any = None, after: Any = None) -> None:
    """``command`` changed ``target``. ``before``, ``after``: values for JSON; None: it was not there, or is not."""
    _write(peer, command, target, before=before, after=after)


def audit_refused(peer: Peer, frame: Frame, error: BrokerError) -> None:
    """A request failed: a line, if its command is one that is audited."""
    command = _AUDITED.get(frame.code)
    if command is None or (command is commands.END_TRANSACTION and not is_by_hand(frame)):
        return
    fields = frame.fields
    names = [f"{kind} {fields[kind]}" for kind in ("group", "topic", "transaction_id", "user") if fields.get(kind)]
    _write(peer, command, ", ".join(names) or "the broker", outcome=error.name, reason=error.message)


def is_by_hand(frame: Frame) -> bool:
    """Whether an END_TRANSACTION comes from an operator; a producer's own are not audited."""
    return frame.fields.get("parked") is True


def topic_values(config: TopicConfig | None) -> dict[str, Any] | None:
    """A topic for ``before`` or ``after``."""
    if config is None:
        return None
    return {
        "read_queues": config.read_queues,
        "write_queues": config.write_queues,
        "perm": config.perm,
        "order": config.order,
        "retention_hours": config.retention_hours,
        "retention_bytes": config.retention_bytes,
    }


def _write(peer: Peer, command: Command, target: str, **others: Any) -> None:
    peer.broker.audit.write(command.name, target, **author(peer), **others)


def author(peer: Peer) -> dict[str, str]:
    """Return who is at the other side, as the audit log names it."""
    user = peer.user.name if peer.user is not None else ""
    return {"user": user, "address": format_address(*peer.address), "client": peer.client}
