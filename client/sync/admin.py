"""The admin: makes and shows topics, and how the broker is doing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...protocol.permissions import Grant
from ...protocol.scram import make_verifier
from ..core import groups as group_operations
from ..core import operations
from ..core import users as user_operations
from ..core.delays import DelayStats, delay_stats
from ..core.groups import GroupInfo, GroupStatus
from ..core.outgoing import Flush
from ..core.prepared import Committed, PreparedInfo, abort_prepared, commit_prepared, prepared
from ..core.settings import ChangedSetting, Setting, change_settings, settings
from ..core.topics import ConsumeStats, QueueStats, TopicInfo
from ..core.transactions import Transactions, end_transaction, transactions
from ..core.users import UserInfo
from .client import Client


class Admin(Client):
    """Manages a broker's topics. ``timeout``: seconds within which a call must be answered, unless it is given one."""

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
        """Create a topic, or change one that exists; queues can be added, not taken away.

        ``queues``: for reading and writing, unless those are given; ``perm``: 4 readable + 2 writable.
        ``retention_hours``: how long messages are kept, 0: as long as the broker keeps its log, -1: for ever;
        ``retention_bytes``: most bytes of the topic's records, the newest, 0: no limit; None: as they are.
        """
        operation = operations.create_topic(
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
        self._caller.call(operations.delete_topic(topic), self._caller.deadline(timeout))

    def topics(self, *, system: bool = False, timeout: float | None = None) -> dict[str, TopicInfo]:
        """The topics by name; ``system``: with the broker's own."""
        found = self._caller.call(operations.topics(), self._caller.deadline(timeout))
        return {topic.topic: topic for topic in found if system or not topic.system}

    def topic_stats(self, topic: str, *, timeout: float | None = None) -> list[QueueStats]:
        """What each queue of a topic holds, in the order of the queues."""
        return self._caller.call(operations.topic_stats(topic), self._caller.deadline(timeout))

    def consume_stats(
        self,
        group: str | None = None,
        topic: str | None = None,
        *,
        uncommitted: bool = False,
        timeout: float | None = None,
    ) -> list[ConsumeStats]:
        """How far groups are, by group, topic and queue: of one group or (None) all, in one topic or all.

        Queues of which a group has committed nothing are left out unless ``uncommitted`` is set: set it to sum up lags.
        """
        operation = operations.consume_stats(group or "", topic or "", uncommitted=uncommitted)
        return self._caller.call(operation, self._caller.deadline(timeout))

    # ---- groups

    def groups(self, *, timeout: float | None = None) -> list[GroupInfo]:
        """Every consumer group, by name."""
        return self._caller.call(group_operations.groups(), self._caller.deadline(timeout))

    def group(self, group: str, *, timeout: float | None = None) -> GroupStatus:
        """One group: its members, who has which queue, and how far each queue is. Raises ``GroupNotExist``."""
        return self._caller.call(group_operations.group_status(group), self._caller.deadline(timeout))

    def delete_group(self, group: str, *, timeout: float | None = None) -> None:
        """Forget a group's progress and its retry topic; its dead letters stay. Raises ``GroupRunning`` while it has
        members."""
        self._caller.call(group_operations.delete_group(group), self._caller.deadline(timeout))

    def reset_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Move a group's progress, back or forth, to these next offsets, by queue.

        Raises ``GroupRunning`` while it has members, unless ``force`` is set: then they begin anew from there.
        """
        if offsets:
            operation = group_operations.reset_offsets(group, topic, offsets, force)
            self._caller.call(operation, self._caller.deadline(timeout))

    def delays(self, *, max_hours: int = 24, timeout: float | None = None) -> DelayStats:
        """What waits to be delivered later, by delay level and by hour. ``max_hours``: most rows of hours."""
        return self._caller.call(delay_stats(max_hours), self._caller.deadline(timeout))

    def transactions(
        self, *, parked: bool = False, from_offset: int = 0, max_count: int = 100, timeout: float | None = None
    ) -> Transactions:
        """A page of the transactions that are open, or (``parked``) whose messages were put aside because nobody could
        tell how they ended; the oldest first. ``from_offset``: ``next_offset`` of the page before."""
        operation = transactions(parked, from_offset, max_count)
        return self._caller.call(operation, self._caller.deadline(timeout))

    def end_transaction(self, transaction_id: str, group: str, *, commit: bool, timeout: float | None = None) -> None:
        """Commit an open transaction of a producer group, or roll it back, in place of its producer; a commit also
        delivers what was parked. Fine where it ended so before; else raises ``TransactionEnded``,
        ``TransactionNotExist`` or ``TransactionGroupWrong``."""
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
        """Commit messages that were sent with ``prepare=``, all of them or none, as transaction ``number`` of
        ``series``.

        ``attempts``: the attempts' names, each with how many messages it prepared; ``drop``: other attempts whose names
        begin so are dropped. A transaction is committed once, however often it is asked for: so is one whose number is
        not above the last committed one of its series. Raises ``PreparedIncomplete`` where an attempt is not there as a
        whole, ``TopicNotExist`` or ``QueueNotExist`` where some of it has nowhere to go; nothing is committed then.
        """
        operation = commit_prepared(series, number, attempts, drop, flush)
        return self._caller.call(operation, self._caller.deadline(timeout))

    def prepared(self, prefix: str = "", *, max_count: int = 100, timeout: float | None = None) -> PreparedInfo:
        """What attempts have prepared that nobody has committed, of those whose names begin so; those first to which
        nothing came for longest. And what is committed and being copied."""
        return self._caller.call(prepared(prefix, max_count), self._caller.deadline(timeout))

    def abort_prepared(self, drop: str, *, timeout: float | None = None) -> int:
        """Drop what the attempts prepared whose names begin so; how many attempts there were."""
        return self._caller.call(abort_prepared(drop), self._caller.deadline(timeout))

    # ---- users

    def users(self, *, timeout: float | None = None) -> list[UserInfo]:
        """The users of the broker, by name. This and all that changes users takes ``admin`` on the broker."""
        return self._caller.call(user_operations.users(), self._caller.deadline(timeout))

    def create_user(
        self, user: str, password: str, grants: Iterable[Grant] = (), *, timeout: float | None = None
    ) -> None:
        """Add a user, who may do what ``grants`` say. Raises ``UserExistsAlready``."""
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
        """Change the password of a user, which closes its connections, or its grants. ``revoke``: None takes all away.

        Raises ``UserNotExist``, and ``InvalidParameter`` for a grant that the user does not have.
        """
        verifier = None if password is None else make_verifier(password)
        operation = user_operations.update_user(user, verifier, grant, revoke)
        self._caller.call(operation, self._caller.deadline(timeout))

    def delete_user(self, user: str, *, timeout: float | None = None) -> None:
        """Remove a user and close its connections. Raises ``UserNotExist``."""
        self._caller.call(user_operations.delete_user(user), self._caller.deadline(timeout))

    def settings(self, *, timeout: float | None = None) -> list[Setting]:
        """The broker's settings, but for those of ``[security]``."""
        return self._caller.call(settings(), self._caller.deadline(timeout))

    def change_settings(
        self, changes: Mapping[str, int | str | bool], *, timeout: float | None = None
    ) -> list[ChangedSetting]:
        """Change settings, by SECTION.NAME, at once and until the broker is started again; all of them or none.

        Values are as in ``broker.toml`` or as on a command line. Raises ``InvalidParameter`` for one that is not there,
        cannot be changed while the broker runs, or cannot have that value.
        """
        return self._caller.call(change_settings(changes), self._caller.deadline(timeout))

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """How the broker is doing: see ``protocol/README.md`` for the names."""
        return self._caller.call(operations.runtime_info(), self._caller.deadline(timeout))
