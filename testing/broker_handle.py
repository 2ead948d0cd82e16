"""The actions of tests on a broker, which may be their own, shared or given."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from ..client import Admin, Consumer, FlintError, GroupNotExist, GroupStatus, StoredMessage, TopicNotExist
from ..client.operator.display import plural
from ..protocol.storage.delivery import dead_letter_topic

POLL_SECONDS = 0.02
_SHOWN_QUEUES = 5


class BrokerNotOwned(FlintError):
    """A test wants to stop, start or kill a broker that others use too."""


class LagRemains(FlintError, TimeoutError):
    """A group did not handle its messages in time. The message names the queues in which some remain."""


class BrokerHandle(ABC):
    """A running broker. ``address``: its HOST:PORT, which stays the same over restarts."""

    address: str

    @abstractmethod
    def start(self) -> None:
        """Start the broker again after ``stop`` or ``kill``, on the same store and address, and wait for its port."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the broker gracefully."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a crash would end it."""

    def drain(self, topic: str) -> list[StoredMessage]:
        """Return all messages that a topic holds, in the order of their storage; empty if there is no such topic."""
        with Consumer(self.address) as consumer:
            try:
                found = list(consumer.iter(topic, from_="earliest", until="latest"))
            except TopicNotExist:
                return []
        return sorted(found, key=lambda message: message.physical_offset)

    def dead_letters(self, group: str) -> list[StoredMessage]:
        """Return the dead letters of a group, oldest first."""
        return self.drain(dead_letter_topic(group))

    def wait_for_lag(self, group: str, lag: int = 0, timeout: float = 5.0) -> None:
        """Wait until a group has at most ``lag`` messages to handle, including failed ones that wait to be tried again.

        A group commits its progress once a second. Raises ``LagRemains`` after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        with Admin(self.address) as admin:
            while True:
                status = _status(admin, group)
                left = None if status is None else sum(queue.lag for queue in status.queues) + status.delayed
                if left is not None and left <= lag and status is not None and all(row.known for row in status.queues):
                    return
                if time.monotonic() >= deadline:
                    raise LagRemains(_described(group, lag, timeout, status))
                time.sleep(POLL_SECONDS)


def _status(admin: Admin, group: str) -> GroupStatus | None:
    """Return the status of a group, or None before its first member has joined."""
    try:
        return admin.group(group)
    except GroupNotExist:
        return None


def _described(group: str, lag: int, timeout: float, status: GroupStatus | None) -> str:
    if status is None:
        return f"group {group} does not exist after {timeout:g} s: no consumer has joined it"
    behind = [queue for queue in status.queues if queue.lag or not queue.known]
    places = [f"{queue.lag} in queue {queue.queue} of {queue.topic}" for queue in behind[:_SHOWN_QUEUES]]
    places += [f"more in {len(behind) - _SHOWN_QUEUES} other queues"] if len(behind) > _SHOWN_QUEUES else []
    places += [f"{status.delayed} that failed and wait to be tried again"] if status.delayed else []
    members = plural(len(status.members), "member")
    return (
        f"group {group} has more than {plural(lag, 'message')} to handle after {timeout:g} s: {', '.join(places)}; "
        f"it has {members}. Wait longer, or look at its consumer"
    )
