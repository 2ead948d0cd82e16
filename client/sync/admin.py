"""The admin client: manages topics, groups, transactions, users and settings, and shows the broker's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...protocol.auth.permissions import Grant
from ...protocol.auth.scram import make_verifier
from ..core import topics as topic_operations
from ..core.admin import groups as group_operations
from ..core.admin import settings as setting_operations
from ..core.admin import users as user_operations
from ..core.admin.delays import DelayStats, delay_stats
from ..core.admin.groups import GroupInfo, GroupStatus
from ..core.admin.settings import ChangedSetting, Setting, change_settings, settings
from ..core.admin.transactions import Transactions, end_transaction, transactions
from ..core.admin.users import UserInfo
from ..core.produce.grouping import Flush
from ..core.produce.prepared import Committed, PreparedInfo, abort_prepared, commit_prepared, prepared
from ..core.topics import ConsumeStats, QueueStats, TopicInfo
from .client import Client


class Admin(Client):
    """Manages a broker. ``timeout``: seconds within which the broker must answer a call, unless the call sets its
    own."""

    def create_topic(
        self,
        topic: str,
        queues: int = 4,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int = 6,
        order: bool = False,
        retention_hours: int | None = None,
        retention_bytes: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Create a topic, or change an existing one; queues can be added but not removed.

        ``queues``: number of queues for reading and for writing, unless ``read_queues`` or ``write_queues`` is given;
        ``perm``: 4 (readable) + 2 (writable). ``retention_hours``: how long messages are kept; 0: as long as the broker
        keeps its log, -1: forever. ``retention_bytes``: maximum bytes of the topic's records, the newest are kept; 0:
        no limit. For both, None leaves the topic's value unchanged.
        """
        operation = topic_operations.create_topic(
            topic,
            queues if read_queues is None else read_queues,
            queues if write_queues is None else write_queues,
            perm,
            order,
            retention_hours,
            retention_bytes,
        )
        self._caller.call(operation, self._caller.deadline(timeout))

    def delete_topic(self, topic: str, *, timeout: float | None = None) -> None:
        """Delete a topic; its messages can no longer be read."""
        self._caller.call(topic_operations.delete_topic(topic), self._caller.deadline(timeout))

    def topics(self, *, system: bool = False, timeout: float | None = None) -> dict[str, TopicInfo]:
        """Return the topics by name; ``system``: include the broker's own."""
        found = self._caller.call(topic_operations.topics(), self._caller.deadline(timeout))
        return {topic.topic: topic for topic in found if system or not topic.system}

    def topic_stats(self, topic: str, *, timeout: float | None = None) -> list[QueueStats]:
        """Return the offsets and counts of each queue of a topic, in the order of the queues."""
        return self._caller.call(topic_operations.topic_stats(topic), self._caller.deadline(timeout))

    def consume_stats(
        self,
        group: str | None = None,
        topic: str | None = None,
        *,
        uncommitted: bool = False,
        timeout: float | None = None,
    ) -> list[ConsumeStats]:
        """Return the progress of groups by group, topic and queue: of one group or (None) all, in one topic or all.

        Queues in which a group has not committed an offset are left out unless ``uncommitted`` is set. Set it to sum up
        lags.
        """
        operation = topic_operations.consume_stats(group or "", topic or "", uncommitted=uncommitted)
        return self._caller.call(operation, self._caller.deadline(timeout))

    # ---- groups

    def groups(self, *, timeout: float | None = None) -> list[GroupInfo]:
        """Return every consumer group, by name."""
        return self._caller.call(group_operations.groups(), self._caller.deadline(timeout))

    def group(self, group: str, *, timeout: float | None = None) -> GroupStatus:
        """Return one group: its members, their assignments and the progress in each queue. Raises ``GroupNotExist``."""
        return self._caller.call(group_operations.group_status(group), self._caller.deadline(timeout))

    def delete_group(self, group: str, *, timeout: float | None = None) -> None:
        """Delete a group's committed offsets and its retry topic; its dead letters stay. Raises ``GroupRunning`` while
        the group has members."""
        self._caller.call(group_operations.delete_group(group), self._caller.deadline(timeout))

    def reset_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Set a group's committed offsets, backward or forward, by queue.

        Raises ``GroupRunning`` while the group has members, unless ``force`` is set: then they restart from there.
        """
        if offsets:
            operation = group_operations.reset_offsets(group, topic, offsets, force)
            self._caller.call(operation, self._caller.deadline(timeout))

    def delays(self, *, max_hours: int = 24, timeout: float | None = None) -> DelayStats:
        """Return the number of messages that wait for later delivery, by delay level and by hour. ``max_hours``:
        maximum number of hours to list."""
        return self._caller.call(delay_stats(max_hours), self._caller.deadline(timeout))

    def transactions(
        self, *, parked: bool = False, from_offset: int = 0, max_count: int = 100, timeout: float | None = None
    ) -> Transactions:
        """Return a page of the open transactions, oldest first, or (``parked``) of those whose messages the broker has
        set aside because no producer could tell how they ended. ``from_offset``: ``next_offset`` of the previous
        page."""
        operation = transactions(parked, from_offset, max_count)
        return self._caller.call(operation, self._caller.deadline(timeout))

    def end_transaction(self, transaction_id: str, group: str, *, commit: bool, timeout: float | None = None) -> None:
        """Commit an open transaction of a producer group, or roll it back, in place of its producer; a commit also
        delivers parked messages. Succeeds if the transaction has already ended that way; otherwise raises
        ``TransactionEnded``, ``TransactionNotExist`` or ``TransactionGroupWrong``."""
        self._caller.call(
            end_transaction(transaction_id, group, commit=commit, parked=True), self._caller.deadline(timeout)
        )

    def commit_prepared(
        self,
        series: str,
        number: int,
        attempts: Mapping[str, int],
        *,
        drop: str | None = None,
        flush: Flush | None = None,
        timeout: float | None = None,
    ) -> Committed:
        """Commit messages that were sent with ``prepare=``, all or none, as transaction ``number`` of ``series``.

        ``attempts``: number of prepared messages by the attempt's name; ``drop``: also drop the other attempts whose
        names begin with this. A transaction is committed only once, however often this is called: a number that is not
        above the last committed one of its series counts as already committed. Raises ``PreparedIncomplete`` if an
        attempt is not complete, and ``TopicNotExist`` or ``QueueNotExist`` if the destination of some messages is
        missing; nothing is committed then.
        """
        operation = commit_prepared(series, number, attempts, drop, flush)
        return self._caller.call(operation, self._caller.deadline(timeout))

    def prepared(self, prefix: str = "", *, max_count: int = 100, timeout: float | None = None) -> PreparedInfo:
        """Return the uncommitted attempts whose names begin with ``prefix``, those that have been idle longest first,
        and the committed transactions that are still being copied."""
        return self._caller.call(prepared(prefix, max_count), self._caller.deadline(timeout))

    def abort_prepared(self, drop: str, *, timeout: float | None = None) -> int:
        """Drop the attempts whose names begin with ``drop``; returns how many there were."""
        return self._caller.call(abort_prepared(drop), self._caller.deadline(timeout))

    # ---- users

    def users(self, *, timeout: float | None = None) -> list[UserInfo]:
        """Return the users of the broker, by name. This and every change of users needs ``admin`` on the broker."""
        return self._caller.call(user_operations.users(), self._caller.deadline(timeout))

    def create_user(
        self, user: str, password: str, grants: Iterable[Grant] = (), *, timeout: float | None = None
    ) -> None:
        """Add a user with these ``grants``. Raises ``UserExistsAlready``."""
        operation = user_operations.create_user(user, make_verifier(password), grants)
        self._caller.call(operation, self._caller.deadline(timeout))

    def change_user(
        self,
        user: str,
        *,
        password: str | None = None,
        grant: Iterable[Grant] = (),
        revoke: Iterable[Grant] | None = (),
        timeout: float | None = None,
    ) -> None:
        """Change a user's password, which closes its connections, or its grants. ``revoke``: None revokes all.

        Raises ``UserNotExist``, and ``InvalidParameter`` for a grant that the user does not have.
        """
        verifier = None if password is None else make_verifier(password)
        operation = user_operations.update_user(user, verifier, grant, revoke)
        self._caller.call(operation, self._caller.deadline(timeout))

    def delete_user(self, user: str, *, timeout: float | None = None) -> None:
        """Remove a user and close its connections. Raises ``UserNotExist``."""
        self._caller.call(user_operations.delete_user(user), self._caller.deadline(timeout))

    def settings(self, *, timeout: float | None = None) -> list[Setting]:
        """Return the broker's settings, except those of ``[security]``."""
        return self._caller.call(settings(), self._caller.deadline(timeout))

    def change_settings(
        self, changes: Mapping[str, int | str | bool], *, timeout: float | None = None
    ) -> list[ChangedSetting]:
        """Change settings, by SECTION.NAME, all or none. They apply at once and until the broker restarts.

        Values are as in ``broker.toml`` or as on a command line. Raises ``InvalidParameter`` if a setting does not
        exist, cannot be changed while the broker runs, or cannot have that value.
        """
        return self._caller.call(change_settings(changes), self._caller.deadline(timeout))

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the broker's runtime status; ``protocol/README.md`` lists the names."""
        return self._caller.call(setting_operations.runtime_info(), self._caller.deadline(timeout))
