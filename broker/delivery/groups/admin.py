"""What operators do with consumer groups, by either protocol: delete one, and reset its progress."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ....protocol.commands import DELETE_SUBSCRIPTIONGROUP, INVOKE_BROKER_TO_RESET_OFFSET
from ....protocol.errors import CommitIllegal, InvalidParameter, QueueNotExist
from ....protocol.names import check_client_group
from ...background.loop_work import called_back
from ..old_retries import is_alone
from .clients import live_members

if TYPE_CHECKING:
    from ....protocol.commands import ResetOffsetRequest
    from ...background.held_pulls import PullRequestHoldService
    from ...store import MessageStore
    from ..client_handle import Requester
    from ..pop.service import PopService
    from ..topic_changes import TopicChanges
    from .coordinator import GroupCoordinator

RESETS = ("first", "last", "time", "offset")


class GroupAdmin:
    """Deletion of groups, and resets of their progress. Belongs to the event loop.

    ``forget``: called with the name of each deleted group, to remove its counters.
    """

    def __init__(
        self,
        store: MessageStore,
        groups: GroupCoordinator,
        pops: PopService,
        holds: PullRequestHoldService,
        topic_changes: TopicChanges,
        forget: Callable[[str], None],
    ) -> None:
        self._store = store
        self._groups = groups
        self._pops = pops
        self._holds = holds
        self._topic_changes = topic_changes
        self._forget = forget

    async def delete(self, caller: Requester, group_name: str) -> None:
        """Delete a group without members and its retry topics; its dead letters stay."""
        groups, changes = self._groups, self._topic_changes
        name = groups.existing(group_name)
        group = groups.groups.get(name)
        groups.check_idle(name, "stop them, then delete it")
        shared = groups.clients.groups.get(name)
        live = len(group.members) if group is not None else len(shared.clients) if shared is not None else 0
        if live:  # ``check_idle`` does not cover broadcasting groups, whose members keep their own progress
            raise InvalidParameter(f"group {name} has {live_members(live)}; stop them, then delete it")
        # Before the deletion, after which nothing tells the group's topics. A topic that may hold retries of another
        # group, too, stays.
        was_known = sorted(groups.known_topics().get(name, ()))
        topics = [topic for topic in groups.retry_topics(name, was_known) if is_alone(self._store, topic)]
        groups.delete_progress(name)
        self._pops.look_at(name)
        caller.audit(DELETE_SUBSCRIPTIONGROUP, f"group {name}", {"topics": was_known})
        self._forget(name)
        await caller.saved()
        for topic in topics:
            if topic not in changes.pending:
                await called_back(partial(changes.delete, topic))

    async def reset(self, caller: Requester, params: ResetOffsetRequest, given: dict[int, int]) -> dict[int, int]:
        """Move a group's committed offsets; return the new ones, by queue. ``given``: for ``to`` = offset."""
        store, groups, group = self._store, self._groups, params.group
        check_client_group(group)
        if params.to not in RESETS:
            raise InvalidParameter(f"to must be first, last, time or offset, not {params.to!r}")
        store.topics.check_readable(params.topic)
        config = store.topics.get(params.topic)
        queues = config.queues if config is not None else 0
        if params.queue >= queues:
            raise QueueNotExist(f"topic {params.topic} has no queue {params.queue}; it has {queues}", queues=queues)

        # Only a progress that members share can be set; if they are alive, only by force.
        running = groups.groups.get(group) or groups.clients.sharing(group)
        if running is not None and not running.clustering:
            raise InvalidParameter(
                f"group {group} is broadcasting: each of its members keeps its own progress, so the group has none to "
                "reset"
            )
        if not params.force:
            groups.check_idle(
                group, "stop them first, or reset with force: they continue from the new offsets", params.topic
            )
        wanted = list(given) if params.to == "offset" else [params.queue] if params.queue >= 0 else list(range(queues))
        if not set(wanted) <= set(range(queues)):
            raise QueueNotExist(f"topic {params.topic} has no queue {max(wanted)}; it has {queues}", queues=queues)

        await caller.dispatched()
        offsets = await caller.read(
            lambda hot: {queue_id: self._target(params, given, queue_id, hot) for queue_id in sorted(wanted)}
        )
        before = store.consumer_offsets.committed(group, params.topic)
        groups.check_may_commit(group, ((params.topic, queue) for queue in offsets))
        groups.ensure_group(group)
        groups.reset_offsets(group, params.topic, offsets)
        self._pops.look_at(group)
        if groups.clients.sharing(group) is not None:
            self._holds.wake_topic(params.topic)  # a held pull would tell its client much later
        caller.audit(
            INVOKE_BROKER_TO_RESET_OFFSET,
            f"group {group}, topic {params.topic}",
            {queue: before[queue] for queue in offsets if queue in before},
            offsets,
        )
        await caller.saved()
        return offsets

    def _target(self, params: ResetOffsetRequest, given: dict[int, int], queue_id: int, hot: bool) -> int:
        topic, reads = params.topic, self._store.queue_reads
        max_offset = reads.max_offset(topic, queue_id)
        if params.to == "last":
            return max_offset
        if params.to == "time":
            return reads.offset_by_time(topic, queue_id, params.timestamp_ms, hot=hot)
        if params.to == "first":
            return reads.min_offset(topic, queue_id, hot=hot)
        if not 0 <= given[queue_id] <= max_offset:
            raise CommitIllegal(
                f"offset {given[queue_id]} of queue {queue_id} of {topic!r} must be in [0, {max_offset}]; nothing was "
                "reset",
                queue=queue_id,
                max_offset=max_offset,
            )
        return given[queue_id]
