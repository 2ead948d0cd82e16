"""The rules that keep acknowledged messages, one method each.

A test of the simulator replaces one method at a time by a broken one and must see a message lost, or seen and vanished.
``docs/replication.md`` numbers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .configuration import Epoch, Epochs, Proposal, SetConfig, common_end, last_epoch
from .messages import Action


class Rules:
    """The rules. The class has no state: the methods belong together so that a test can override one."""

    def required(self, config: SetConfig, proposals: Iterable[Proposal]) -> frozenset[str]:
        """Return the members that must have a message on disk before it is acknowledged: those in sync, and those of
        every proposal whose outcome is not known, because it may have been applied."""
        members = config.in_sync
        for proposal in proposals:
            if proposal.config.epoch == config.epoch:
                members |= proposal.config.in_sync
        return members

    def confirmed(self, required: Iterable[str], flushed: Mapping[str, int]) -> int:
        """Return the physical offset below which every required member has the log on disk. A member without a report
        in this epoch has nothing."""
        return min(flushed.get(member, 0) for member in required)

    def may_acknowledge(self, config: SetConfig) -> bool:
        """Return whether enough members are in sync. A proposal counts only after it is done."""
        return len(config.in_sync) >= config.min_in_sync

    def serves(self, now: float, lease_until: float, margin: float) -> bool:
        """Return whether the lease still protects this primary's answers from those of a successor."""
        return now < lease_until - margin

    def may_answer(self, protected: bool, handing_over: bool) -> bool:
        """Return whether a primary may give answers that only one member may give: its lease lasts, and it has not
        asked the registry to make another member the primary, who may answer already."""
        return protected and not handing_over

    def may_join(self, flushed: int, confirmed: int, epoch_start: int, own_flushed: int, gap: int) -> bool:
        """Return whether a follower has everything that was acknowledged. The gap only keeps acknowledgements from
        waiting for a follower that still has much to fetch."""
        return flushed >= max(confirmed, epoch_start) and flushed >= own_flushed - gap

    def may_lead(self, member: str, config: SetConfig, complete: bool) -> bool:
        """Return whether a member has every acknowledged message: it is in sync, and its disk was not replaced."""
        return complete and member in config.in_sync

    def is_vacant(self, member: str, config: SetConfig, holder: str | None) -> bool:
        """Return whether no living member leads. A lease of the member itself is from before its restart, but only if
        it was the last primary: a successor may not have taken its lease yet."""
        return holder is None or holder == member == config.primary

    def begins_epoch(self, member: str, config: SetConfig, epochs: Epochs, complete: bool) -> bool:
        """Return whether the configuration gives this member an epoch in which it has written nothing. After a restart
        it needs a new one, because it no longer knows what it acknowledged and to whom it spoke. The disk may have been
        replaced since it was proposed."""
        return complete and config.primary == member and config.epoch > last_epoch(epochs)

    def may_serve(self, epoch_saved: bool) -> bool:
        """Return whether a primary may take messages as far as its disk is concerned: a message that is written before
        the epoch is saved would seem to belong to the epoch before."""
        return epoch_saved

    def epochs_to_lead(self, epochs: Epochs, epoch: int, end: int) -> Epochs:
        """Return the epochs of a log whose next byte belongs to ``epoch``. Epochs without a byte go, also one that
        starts at the same offset: two leaderships must never have the same history."""
        return (*(each for each in epochs if each.start < end), Epoch(epoch, end))

    def cut_point(self, ours: Epochs, our_end: int, theirs: Epochs, their_end: int) -> int:
        """Return where a follower's log (``theirs``) must be cut."""
        return common_end(ours, our_end, theirs, their_end)

    def steps_to_adopt(self, cut: Action, save: Action) -> tuple[Action, ...]:
        """Return the disk's work to take over a primary's history, in order. With the primary's epochs beside bytes
        that it does not have, a crash in between would make two histories look like one."""
        return cut, save

    def may_cut(self, to: int, confirmed: int) -> bool:
        """Return whether a follower may cut its log at ``to``, or begin it from scratch there: never below what it has
        seen confirmed."""
        return to >= confirmed

    def reported(self, written: int, flushed: int) -> int:
        """Return the position that a follower reports as safe: a disk that loses power keeps what was flushed."""
        return min(written, flushed)

    def report_at_hello(self, earlier: int | None) -> int | None:
        """Return the report that counts when a follower connects again, None for none: its disk may be another one
        than that of its ``earlier`` report."""
        return None

    def visible(self, confirmed: int, flushed: int) -> int:
        """Return the physical offset below which a follower may show its log to consumers."""
        return min(confirmed, flushed)

    def is_current(self, epoch: int, own_epoch: int) -> bool:
        """Return whether a message belongs to the epoch of the connection."""
        return epoch == own_epoch

    def is_complete(self, flushed: int, confirmed: int, epoch_start: int) -> bool:
        """Return whether a log that began from scratch has everything that was acknowledged. What earlier epochs
        acknowledged is below the epoch's start; a new primary does not know yet that it is confirmed."""
        return flushed >= max(confirmed, epoch_start)

    def next_in_sync(self, config: SetConfig, lagging: Iterable[str], joining: Iterable[str]) -> frozenset[str]:
        """Return the members to be in sync. ``lagging``: those to be taken out, the worst first.

        The set never becomes smaller than ``min_in_sync``: nothing could be acknowledged then, and each member in the
        set is one more that may lead."""
        members = set(config.in_sync) | set(joining)
        for member in lagging:
            if len(members) > config.min_in_sync:
                members.discard(member)
        return frozenset(members)


# ---- Limits of the core: times in seconds of the member's own monotonic clock, and sizes.


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits. The driver calls ``tick`` at least every ``tick_s``."""

    lease_s: float = 5.0
    """Time for which the registry keeps a lease that is not renewed."""
    margin_s: float = 0.5
    """Time before the end of the lease at which a primary stops, for clocks that differ in speed."""
    lag_s: float = 5.0
    """Time that a member in sync may stay behind before the primary takes it out."""
    heartbeat_s: float = 0.5
    """Maximum time between two messages of a connection."""
    silence_s: float = 2.0
    """Time without a message after which a connection is closed."""
    turn_s: float = 0.15
    """Time between the attempts of two members to become primary, so that they do not disturb each other."""
    begin_s: float = 1.0
    """Time that the primary of a new epoch has to take the lease before others propose themselves."""
    retry_s: float = 0.2
    """Time between two attempts to reach the primary or the registry."""
    read_s: float = 1.0
    """Time between two reads of the registry while there is no stream, because a watch may have missed a change."""
    tick_s: float = 0.05
    window_bytes: int = 8 << 20
    """Maximum number of bytes that were sent to a follower and that it has not reported as written."""
    piece_bytes: int = 1 << 20
    """Maximum number of bytes of a piece; a record is never divided, so one record may be longer."""
    join_gap_bytes: int = 1 << 20
    """Maximum number of bytes that a follower may be behind when it joins the members in sync."""
    quick_takeover: bool = True
    """True if a follower proposes to lead before the lease ends when the primary's host refuses its connections."""
