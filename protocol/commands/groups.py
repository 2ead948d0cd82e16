"""Consumer groups and producer groups: heartbeats, what is sent back, members, resets."""

from __future__ import annotations

from dataclasses import dataclass

from ..delivery import RETRY_REASON_CHARS_MAX, RETRY_TIMES_MAX
from ..errors import InvalidParameter
from ..fields import I32_MAX, I64_MAX, boolean, integer, text
from ..layout import GROUP_BYTES_MAX
from .common import MEMBER_CHARS_MAX, QUEUES_MAX

SEND_BACK_MAX = 1_024
"""Most messages that are sent back in one request."""
REASONS_CHARS_MAX = 32_768
REASON_SEPARATOR = "\x02"


@dataclass(slots=True)
class HeartBeatRequest:
    """Join a group, stay in it, and learn what to consume. Body: one msgpack array `[subscriptions, owned]`:
    `subscriptions` an array of `[topic, tags, filter]`, `owned` one of `[topic, queue]`, the queues that the member
    still holds: messages of them may be with it. Of a producer group: no body."""

    group: str = text("consumer group, or producer group", GROUP_BYTES_MAX, 1)
    member: str = text("the member's name, unique in the group", MEMBER_CHARS_MAX, 1)
    kind: str = text("`consumer` or `producer`", 8, default="consumer")
    epoch: int = integer("of the assignment that the member has; 0: it joins", 0, I64_MAX, 0)
    mode: str = text("`clustering` or `broadcasting`", 12, default="clustering")
    start: str = text("where queues begin of which nothing is committed: `first`, `last` or `time`", 8, default="last")
    start_ms: int = integer("with `time`: the least store time, ms since 1970 UTC", 0, I64_MAX, 0)
    session_timeout_ms: int = integer("after this long without a heartbeat the member is gone", 1_000, 300_000, 10_000)
    orderly: bool = boolean("whether it consumes each queue one message at a time, for who looks", False)


@dataclass(slots=True)
class HeartBeatAnswer:
    """What the member may consume. Body: one msgpack array of `[topic, queue, next_offset, granted]`. A queue that it
    holds and that is not in there is to be given up."""

    epoch: int = integer("of this assignment; goes with every pull and commit")
    count: int = integer("queues in the body", default=0)
    interval_ms: int = integer("how often to send a heartbeat", default=3_000)
    retry_times_max: int = integer("how often the group tries a message again", default=RETRY_TIMES_MAX)
    run: int = integer(
        "which start of the broker this is: another one may have forgotten the latest commits", default=0
    )
    missing: str = text(
        "topics that the member wants and that are not there, or cannot be read; the first 100, separated by spaces",
        32767,
        default="",
    )


@dataclass(slots=True)
class UnregisterClientRequest:
    """Leave a group at once: what the member held is given to others."""

    group: str = text("consumer group, or producer group", GROUP_BYTES_MAX, 1)
    member: str = text("the member's name", MEMBER_CHARS_MAX, 1)
    kind: str = text("`consumer` or `producer`", 8, default="consumer")
    epoch: int = integer("of the member's assignment; 0: whichever it is", 0, I64_MAX, 0)


@dataclass(slots=True)
class IdsChangedRequest:
    """From the broker to a member, one-way: the assignment changed, send a heartbeat."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    epoch: int = integer("of the new assignment")


@dataclass(slots=True)
class SendMessageBackRequest:
    """Messages that a consumer could not handle: they come back later, or become dead letters. Body: count × i64, their
    physical offsets."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    count: int = integer("messages in the body", 1, SEND_BACK_MAX)
    delay_level: int = integer("1 to 18; 0: 3 and one more each time; -1: dead letters at once", -1, 1_000, 0)
    retry_times_max: int = integer("after so many tries they are dead letters; -1: the group's", -1, I32_MAX, -1)
    member: str = text("the group's member that sends them back; empty: none", MEMBER_CHARS_MAX, default="")
    epoch: int = integer("of the member's assignment", 0, I64_MAX, 0)
    reason: str = text("why they could not be handled: their `RETRY_REASON`", RETRY_REASON_CHARS_MAX, default="")
    reasons: str = text("instead: a reason for each message, separated by 0x02", REASONS_CHARS_MAX, default="")

    def reason_of_each(self) -> list[str]:
        """Return as many reasons as there are messages. Raises ``InvalidParameter``."""
        if not self.reasons:
            return [self.reason] * self.count
        reasons = self.reasons.split(REASON_SEPARATOR)
        if self.reason:
            raise InvalidParameter("both reason and reasons are given; give reason where it is the same for all")
        if len(reasons) != self.count:
            raise InvalidParameter(f"reasons holds {len(reasons)} for {self.count} messages; give one for each")
        longest = max(map(len, reasons))
        if longest > RETRY_REASON_CHARS_MAX:
            raise InvalidParameter(
                f"reasons holds one of {longest} characters; at most {RETRY_REASON_CHARS_MAX} are kept of a reason"
            )
        return reasons


@dataclass(slots=True)
class SendMessageBackAnswer:
    """They are stored again."""

    retried: int = integer("how many come back")
    dead: int = integer("how many became dead letters")


@dataclass(slots=True)
class ResetOffsetRequest:
    """Move a group's progress, back or forth. Body: with `to` `offset`, count × (i32 queue, i64 next offset)."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    to: str = text("`first`, `last`, `time` or `offset`", 8, 1)
    queue: int = integer("queue of the topic; -1: all", -1, QUEUES_MAX - 1, -1)
    timestamp_ms: int = integer("with `time`: to the first message stored at or behind it", 0, I64_MAX, 0)
    count: int = integer("entries in the body", 0, QUEUES_MAX, 0)
    force: bool = boolean("also where the group has live members, which then go on from there", False)


@dataclass(slots=True)
class GroupRequest:
    """A question about, or the deletion of, one group."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)


@dataclass(slots=True)
class DeleteGroupRequest:
    """Forget a group: its progress, and its retry topic. Its dead letters stay."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)


@dataclass(slots=True)
class GroupsAnswer:
    """Body: one msgpack array of maps `{group, mode, state, members, epoch, topics, partial, retry_times_max}`."""

    count: int = integer("groups in the body")


@dataclass(slots=True)
class GroupMembersAnswer:
    """Body: one msgpack map `{group, mode, state, epoch, members, queues, delayed, partial}`: `members` an array of
    maps `{member, client, address, epoch, since_ms, heartbeat_ms, orderly, queues, subscriptions}`, `queues` one of
    `[topic, queue, member, committed, pulled, min_offset, max_offset, known]`, `delayed` how many messages wait to come
    to `%RETRY%group`."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
