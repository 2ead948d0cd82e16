"""Administration: groups, transactions, delayed messages, users and settings as an operator sees and changes them.

Each operation with a timeout is a method of both admin clients. A request that producers or readers send too belongs to
their rooms or to ``core.topics``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from ...protocol import commands
from ...protocol.auth.permissions import Grant, Permissions
from ...protocol.auth.scram import AccessKey, ScramError, make_access_key, make_verifier
from ...protocol.auth.users import verifier_row
from ...protocol.commands import (
    CONNECTIONS_MAX,
    CONSUMER_OFFSET_STRUCT,
    QUARANTINE_MAX,
    ArchiveStatus,
    ChangedSetting,
    ConnectionInfo,
    GroupInfo,
    GroupStatus,
    QuarantineEntry,
    ReplicaStatusAnswer,
    SetMember,
    Setting,
    SettingValue,
    TransactionInfo,
    UserInfo,
)
from ...protocol.errors import RemoteProtocolError, TransactionEnded, error_from_answer
from ...protocol.fields import decode_fields
from ...protocol.rows import decode_rows
from ...protocol.times import duration_millis, from_millis
from ..errors import InvalidArgument
from .rpc.operation import Operation, fetching, listing, nothing, operation, pack_body, unpack_body
from .rpc.session import Answer
from .rpc.timeouts import check_timeout
from .topics import encode_offsets

# ---- Users of the broker as an administrator sees and changes them. Passwords stay here: the broker gets
# verifiers.


def users(user: str | None = None, *, timeout: float | None = None) -> Operation[list[UserInfo]]:
    """Return the users of the broker by name, or one of them. This and every change of users needs ``admin`` on the
    broker. Raises ``UserNotExist``."""
    return listing(commands.AUTH_LIST_USER, timeout=timeout, user=user or "")


def create_user(
    user: str, password: str, grants: Iterable[Grant] = (), *, timeout: float | None = None
) -> Operation[None]:
    """Add a user with these ``grants``. Raises ``UserExistsAlready``, and ``InvalidArgument`` if no user can have the
    password."""
    body = {"scram": _scram_row(password), "grants": _user_rows(grants)}
    return operation(commands.AUTH_CREATE_USER, nothing, pack_body(body), timeout=timeout, user=user)


def change_user(
    user: str,
    *,
    password: str | None = None,
    grant: Iterable[Grant] = (),
    revoke: Iterable[Grant] | None = (),
    timeout: float | None = None,
) -> Operation[None]:
    """Change a user's password, which closes its connections, or its grants. ``revoke``: None revokes all.

    Raises ``UserNotExist``, ``InvalidParameter`` for a grant that the user does not have, and ``InvalidArgument`` for a
    password that no user can have.
    """
    body: dict[str, Any] = {}
    if password is not None:
        body["scram"] = _scram_row(password)
    if granted := _user_rows(grant):
        body["grant"] = granted
    if revoke is None:
        body["revoke"] = None
    elif revoked := _user_rows(revoke):
        body["revoke"] = revoked
    return operation(commands.AUTH_UPDATE_USER, nothing, pack_body(body), timeout=timeout, user=user)


def add_access_key(user: str, *, key: str = "", secret: str = "", timeout: float | None = None) -> Operation[AccessKey]:
    """Add an access key to a user, with which RocketMQ's clients sign as that user; return it with its secret, which
    the broker shows to no client. ``key``, ``secret``: values that clients already have; empty: random ones.

    Raises ``UserNotExist``; ``InvalidParameter`` if a user has that key, or if this one has too many; and
    ``ConfigurationError`` for invalid values. The secret passes the connection as it is, so use TLS.
    """
    made = make_access_key(key, secret)
    body = pack_body({"access_key": made.as_json()})
    return operation(commands.AUTH_UPDATE_USER, lambda answer: made, body, timeout=timeout, user=user)


def remove_access_key(user: str, key: str, *, timeout: float | None = None) -> Operation[None]:
    """Remove an access key; clients that sign with it lose their access at once.

    Raises ``UserNotExist``, and ``InvalidParameter`` if the user does not have it.
    """
    body = pack_body({"remove_access_key": key})
    return operation(commands.AUTH_UPDATE_USER, nothing, body, timeout=timeout, user=user)


def delete_user(user: str, *, timeout: float | None = None) -> Operation[None]:
    """Remove a user and close its connections. Raises ``UserNotExist``."""
    return operation(commands.AUTH_DELETE_USER, nothing, timeout=timeout, user=user)


def _scram_row(password: str) -> dict[str, Any]:
    try:
        return verifier_row(make_verifier(password))
    except ScramError as error:
        raise InvalidArgument(f"password: {error}") from None


def _user_rows(grants: Iterable[Grant]) -> list[dict[str, Any]]:
    return [grant.as_json() for grant in grants]


# ---- The broker's connections, and the rights of the client's own user.


def connections(
    after: int = 0, *, max_count: int = CONNECTIONS_MAX, timeout: float | None = None
) -> Operation[list[ConnectionInfo]]:
    """Return at most ``max_count`` open connections (1 to 1,000) whose ids follow ``after``, by id.

    If there are ``max_count`` of them, call it again with the last id. Needs ``query`` on the broker.
    """
    return listing(commands.GET_CONNECTIONS, timeout=timeout, after=after, max_count=max_count)


def close_connection(connection: int, opened_ms: int = -1, *, timeout: float | None = None) -> Operation[None]:
    """Close the connection with this ``id``; its client is told, and may connect again. Needs ``admin`` on the broker.

    ``opened_ms``: as listed, so that a broker that has restarted since then closes no other one. Raises
    ``InvalidParameter`` if it is not open any more.
    """
    return operation(commands.CLOSE_CONNECTION, nothing, timeout=timeout, connection=connection, opened_ms=opened_ms)


def whoami(*, timeout: float | None = None) -> Operation[UserInfo]:
    """Return the client's own user and its grants. The name is empty if the broker has no users; every client may then
    do everything."""

    def decode(answer: Answer) -> UserInfo:
        user = decode_fields(commands.RightsAnswer, answer.fields).user
        return UserInfo(user, Permissions.parse(unpack_body(answer), user).grants)

    return operation(commands.GET_RIGHTS, decode, timeout=timeout)


# ---- Statistics of the messages that wait at the broker for later delivery.


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """A number of waiting messages, and when the next of them is due, ms since 1970 UTC (0: none waits)."""

    messages: int
    next_due_ms: int

    @property
    def next_due_at(self) -> datetime | None:
        """Time at which the next message is due, or None."""
        return from_millis(self.next_due_ms) if self.messages else None


@dataclass(frozen=True, slots=True)
class DelayStats:
    """Statistics of delayed and timed messages. ``levels``: by delay level, for levels that have had a message;
    ``hours``: timed messages by the hour in which they are due, the last row for all later ones; ``timed``: their total
    number; ``behind``: number of timed messages that are not counted yet; ``parked``: number of messages that could not
    be delivered."""

    levels: dict[int, DelayedMessages]
    hours: Sequence[tuple[datetime, DelayedMessages]]
    timed: int
    behind: int
    parked: int


def delays(*, max_hours: int = 24, timeout: float | None = None) -> Operation[DelayStats]:
    """Return the number of messages that wait for later delivery, by delay level and by hour. ``max_hours``:
    maximum number of hours to list."""

    def decode(answer: Answer) -> DelayStats:
        head = decode_fields(commands.DelayStatsAnswer, answer.fields)
        tables = unpack_body(answer)
        if not isinstance(tables, dict):
            raise RemoteProtocolError(f"delay stats as {type(tables).__name__}")
        return DelayStats(
            {level: DelayedMessages(messages, due_ms) for level, messages, due_ms in tables["levels"]},
            [(from_millis(begins), DelayedMessages(messages, due_ms)) for begins, messages, due_ms in tables["hours"]],
            head.timed,
            head.behind,
            head.parked,
        )

    return operation(commands.GET_DELAY_STATS, decode, timeout=timeout, max_hours=max_hours)


# ---- Consumer groups as an operator sees them, and the operations on them.


def groups(*, timeout: float | None = None) -> Operation[list[GroupInfo]]:
    """Return every consumer group, by name."""
    return listing(commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout=timeout)


def group(group: str, *, timeout: float | None = None) -> Operation[GroupStatus]:
    """Return one group: its members, their assignments and the progress in each queue. Raises ``GroupNotExist``."""
    return fetching(commands.GET_CONSUMER_CONNECTION_LIST, timeout=timeout, group=group)


def delete_group(group: str, *, timeout: float | None = None) -> Operation[None]:
    """Delete a group's committed offsets and its retry topic; its dead letters stay. Raises ``GroupRunning`` while
    the group has members."""
    return operation(commands.DELETE_SUBSCRIPTIONGROUP, nothing, timeout=timeout, group=group)


def reset_offsets(group: str, topic: str, offsets: Mapping[int, int], force: bool) -> Operation[dict[int, int]]:
    """Return the operation that sets a group's committed offsets, by queue. Raises ``InvalidArgument``."""
    body = encode_offsets(offsets)
    return operation(
        commands.INVOKE_BROKER_TO_RESET_OFFSET,
        _offsets,
        body,
        group=group,
        topic=topic,
        to="offset",
        count=len(offsets),
        force=force,
    )


def _offsets(answer: Answer) -> dict[int, int]:
    decode_fields(commands.ConsumerOffsetsAnswer, answer.fields)
    return dict(CONSUMER_OFFSET_STRUCT.iter_unpack(answer.body))


# ---- The broker's quarantine: damaged ranges of its log, and the messages that are lost in them.


def quarantine(
    after: QuarantineEntry | None = None, *, max_count: int = QUARANTINE_MAX, timeout: float | None = None
) -> Operation[list[QuarantineEntry]]:
    """Return at most ``max_count`` entries of the quarantine (1 to 1,000) that follow ``after``, by physical offset.

    If there are ``max_count`` of them, call it again with the last one. Needs ``query`` on the broker.
    """
    place: dict[str, Any] = {}
    if after is not None:
        place = {"after": after.physical_offset, "after_found_ms": after.found_ms}
    return listing(commands.GET_QUARANTINE, timeout=timeout, max_count=max_count, **place)


# ---- The archive that the broker writes.


def archive(*, timeout: float | None = None) -> Operation[ArchiveStatus]:
    """Return the state of the archive that the broker writes; its ``url`` is empty if it writes none.

    Needs ``query`` on the broker.
    """
    return fetching(commands.GET_ARCHIVE, timeout=timeout)


# ---- The replica set that the broker is a member of.

SWITCH_S = 10.0


@dataclass(frozen=True, slots=True)
class ReplicaSetStatus:
    """A replica set, as the ``member`` that answered sees it; ``replica_set`` is empty if the broker is on its own.

    ``role``: ``primary``, ``elected`` (it does not serve yet), ``follower`` or ``stopped``; ``epoch``: number of the
    leadership; ``primary``: id of the primary, or an empty string; ``min_in_sync``: members that must have a
    message on disk before it is acknowledged; ``end`` and ``confirmed``: physical offsets at which the member's log
    ends, and below which it is confirmed; ``reason``: why the member takes no part, or why the primary refuses it.
    """

    replica_set: str
    member: str
    role: str
    epoch: int
    primary: str
    min_in_sync: int
    end: int
    confirmed: int
    reason: str
    members: list[SetMember]


def replica_status(*, timeout: float | None = None) -> Operation[ReplicaSetStatus]:
    """Return the broker's replica set. Needs ``query`` on the broker."""

    def decode(answer: Answer) -> ReplicaSetStatus:
        found = decode_fields(ReplicaStatusAnswer, answer.fields)
        return ReplicaSetStatus(
            **{"replica_set" if name == "set" else name: value for name, value in asdict(found).items()},
            members=decode_rows(SetMember, unpack_body(answer)),
        )

    return operation(commands.GET_REPLICA_STATUS, decode, timeout=timeout)


def switch_primary(member: str, *, within: float = SWITCH_S, timeout: float | None = None) -> Operation[None]:
    """Hand the leadership to a member in sync, which must have the whole log ``within`` seconds; else nothing changes.

    Returns when this has begun. Raises ``ReplicationRefused`` if that member cannot lead. Needs ``admin`` on the
    broker.
    """
    return operation(
        commands.SWITCH_PRIMARY,
        nothing,
        timeout=timeout,
        member=member,
        within_ms=duration_millis(check_timeout("within", within)),
    )


def add_member(member: str, address: str, *, timeout: float | None = None) -> Operation[None]:
    """Add a member that listens at ``address``, HOST:PORT; it copies the log when it is started with an empty store.

    Returns when the registry has it. Raises ``ReplicationRefused``, for instance while another change is being made.
    Needs ``admin`` on the broker.
    """
    return operation(commands.CHANGE_MEMBERS, nothing, timeout=timeout, member=member, address=address)


def remove_member(member: str, *, timeout: float | None = None) -> Operation[None]:
    """Remove a member, which is not the primary, from the set.

    Returns when the registry has it. Raises ``ReplicationRefused``, for instance if too few members in sync would be
    left. Needs ``admin`` on the broker.
    """
    return operation(commands.CHANGE_MEMBERS, nothing, timeout=timeout, member=member)


# ---- The broker's settings as an administrator sees and changes them, and its status.


def settings(*, timeout: float | None = None) -> Operation[list[Setting]]:
    """Return the broker's settings, except those of ``[security]``, in the order of ``broker.toml``."""
    return listing(commands.GET_BROKER_CONFIG, timeout=timeout)


def change_settings(
    changes: Mapping[str, SettingValue], *, timeout: float | None = None
) -> Operation[list[ChangedSetting]]:
    """Change settings, by SECTION.NAME, all or none. They apply at once and until the broker restarts.

    Values are as in ``broker.toml`` or as on a command line. Raises ``InvalidParameter`` if a setting does not
    exist, cannot be changed while the broker runs, or cannot have that value.
    """
    return listing(commands.UPDATE_BROKER_CONFIG, pack_body(dict(changes)), timeout=timeout, count=len(changes))


def status(*, timeout: float | None = None) -> Operation[dict[str, Any]]:
    """Return the broker's runtime status; ``protocol/README.md`` lists the names."""

    def decode(answer: Answer) -> dict[str, Any]:
        info = unpack_body(answer)
        if not isinstance(info, dict):
            raise RemoteProtocolError(f"expected runtime info as a map, got {type(info).__name__}")
        return info

    return operation(commands.GET_BROKER_RUNTIME_INFO, decode, timeout=timeout)


# ---- Transactions as an operator sees them, and the operation that ends one.


@dataclass(frozen=True, slots=True)
class Transactions:
    """One page of transactions. ``next_offset``: where the next page begins, -1 on the last page; ``open``, ``parked``:
    total numbers."""

    rows: Sequence[TransactionInfo]
    next_offset: int
    open: int
    parked: int


def transactions(
    *, parked: bool = False, from_offset: int = 0, max_count: int = 100, timeout: float | None = None
) -> Operation[Transactions]:
    """Return a page of the open transactions, oldest first, or (``parked``) of those whose messages the broker has
    set aside because no producer could tell how they ended. ``from_offset``: ``next_offset`` of the previous
    page."""

    def decode(answer: Answer) -> Transactions:
        head = decode_fields(commands.TransactionsAnswer, answer.fields)
        return Transactions(decode_rows(TransactionInfo, unpack_body(answer)), head.next_offset, head.open, head.parked)

    return operation(
        commands.GET_TRANSACTIONS, decode, timeout=timeout, parked=parked, from_offset=from_offset, max_count=max_count
    )


class EndTransaction(Operation[None]):
    """END_TRANSACTION; succeeds if the transaction has already ended with the wanted outcome."""

    __slots__ = ()

    def result(self, answer: Answer) -> None:
        """Raise the error of the response, unless it says that the transaction has already ended as requested."""
        if answer.code == TransactionEnded.code:
            error = error_from_answer(answer.code, answer.fields)
            wanted = "commit" if self.fields["commit"] else "rollback"
            if error.details.get("outcome") == wanted:
                return
            raise error
        super().result(answer)


def end_transaction(transaction_id: str, group: str, *, commit: bool, timeout: float | None = None) -> Operation[None]:
    """Commit an open transaction of a producer group, or roll it back, in place of its producer; a commit also
    delivers parked messages. Succeeds if the transaction has already ended that way; otherwise raises
    ``TransactionEnded``, ``TransactionNotExist`` or ``TransactionGroupWrong``."""
    return replace(end_half(transaction_id, group, commit=commit, parked=True), timeout=timeout)


def end_half(
    transaction_id: str,
    group: str,
    *,
    commit: bool,
    half_queue_offset: int = -1,
    half_physical_offset: int = -1,
    parked: bool = False,
) -> Operation[None]:
    """End the transaction of a half message; the broker compares the offsets if they are given. ``parked``: accept also
    a parked one."""
    made = operation(
        commands.END_TRANSACTION,
        nothing,
        transaction_id=transaction_id,
        group=group,
        commit=commit,
        half_queue_offset=half_queue_offset,
        half_physical_offset=half_physical_offset,
        parked=parked,
    )
    return EndTransaction(made.command, made.fields, made.decode)
