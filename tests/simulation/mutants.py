"""Broken rules of the core, one each. The simulator must see a promise broken with each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flintmq.broker.replication.core.configuration import Epoch, Epochs, Proposal, SetConfig, last_epoch
from flintmq.broker.replication.core.messages import Action
from flintmq.broker.replication.core.rules import Rules


class AcknowledgeAlone(Rules):
    """Do not wait for followers."""

    def confirmed(self, required: Iterable[str], flushed: Mapping[str, int]) -> int:
        return max(flushed.values())


class IgnoreSilentMembers(Rules):
    """Count only the members that have reported in this epoch."""

    def confirmed(self, required: Iterable[str], flushed: Mapping[str, int]) -> int:
        return min(flushed[member] for member in required if member in flushed)


class ShrinkBeforeItIsDone(Rules):
    """Do not wait for a member any more as soon as its removal is proposed."""

    def required(self, config: SetConfig, proposals: Iterable[Proposal]) -> frozenset[str]:
        members = config.in_sync
        for proposal in proposals:
            members &= proposal.config.in_sync
        return members or config.in_sync


class ForgetUnknownProposals(Rules):
    """Do not wait for a member that may have been added."""

    def required(self, config: SetConfig, proposals: Iterable[Proposal]) -> frozenset[str]:
        return config.in_sync


class IgnoreTheMinimum(Rules):
    """Acknowledge with too few members in sync."""

    def may_acknowledge(self, config: SetConfig) -> bool:
        return True


class IgnoreTheLease(Rules):
    """Answer after the lease may have ended."""

    def serves(self, now: float, lease_until: float, margin: float) -> bool:
        return True


class AnswerWhileHandingOver(Rules):
    """Answer after another member was proposed."""

    def may_answer(self, protected: bool, handing_over: bool) -> bool:
        return protected


class JoinTooEarly(Rules):
    """Take a follower into the set that does not have everything."""

    def may_join(self, flushed: int, confirmed: int, epoch_start: int, own_flushed: int, gap: int) -> bool:
        return True


class LeadFromOutside(Rules):
    """Lead without being in sync."""

    def may_lead(self, member: str, config: SetConfig, complete: bool) -> bool:
        return complete and member in config.members


class TakeOwnLeasesForVacant(Rules):
    """Propose to lead although a successor may be about to take its lease."""

    def is_vacant(self, member: str, config: SetConfig, holder: str | None) -> bool:
        return holder in (None, member)


class LeadWithAnEmptyDisk(Rules):
    """Lead after the disk was replaced."""

    def may_lead(self, member: str, config: SetConfig, complete: bool) -> bool:
        return member in config.in_sync

    def begins_epoch(self, member: str, config: SetConfig, epochs: Epochs, complete: bool) -> bool:
        return super().begins_epoch(member, config, epochs, True)


class CompleteTooEarly(Rules):
    """Take a replaced disk for complete as soon as it has what the primary of a new epoch knows to be confirmed."""

    def is_complete(self, flushed: int, confirmed: int, epoch_start: int) -> bool:
        return flushed >= confirmed  # a new primary has confirmed nothing yet


class ResumeTheEpoch(Rules):
    """Lead on in the same epoch after a restart."""

    def begins_epoch(self, member: str, config: SetConfig, epochs: Epochs, complete: bool) -> bool:
        return complete and config.primary == member and config.epoch >= last_epoch(epochs)


class ServeBeforeTheEpochIsSaved(Rules):
    """Take messages before the epoch is on disk."""

    def may_serve(self, epoch_saved: bool) -> bool:
        return True


class KeepAnEpochWithTheSameStart(Rules):
    """Do not begin an epoch that starts where the one before does, as RocketMQ 5.3.3."""

    def epochs_to_lead(self, epochs: Epochs, epoch: int, end: int) -> Epochs:
        return epochs if epochs and epochs[-1].start == end else (*epochs, Epoch(epoch, end))


class KeepTheTail(Rules):
    """Do not cut what a follower has beyond the common history."""

    def cut_point(self, ours: Epochs, our_end: int, theirs: Epochs, their_end: int) -> int:
        return min(our_end, their_end)


class SaveEpochsBeforeTheCut(Rules):
    """Adopt the primary's history while the own tail is still there."""

    def steps_to_adopt(self, cut: Action, save: Action) -> tuple[Action, ...]:
        return save, cut


class ReportWhatIsWritten(Rules):
    """Report what the disk may lose."""

    def reported(self, written: int, flushed: int) -> int:
        return written


class KeepReportsOfOldDisks(Rules):
    """Count what a member reported before it connected again."""

    def report_at_hello(self, earlier: int | None) -> int | None:
        return earlier


class ShowWhatIsNotConfirmed(Rules):
    """Let a follower show everything that it has."""

    def visible(self, confirmed: int, flushed: int) -> int:
        return flushed


MUTANTS: tuple[type[Rules], ...] = (
    AcknowledgeAlone,
    IgnoreSilentMembers,
    ShrinkBeforeItIsDone,
    ForgetUnknownProposals,
    IgnoreTheMinimum,
    IgnoreTheLease,
    AnswerWhileHandingOver,
    JoinTooEarly,
    LeadFromOutside,
    TakeOwnLeasesForVacant,
    LeadWithAnEmptyDisk,
    CompleteTooEarly,
    ResumeTheEpoch,
    ServeBeforeTheEpochIsSaved,
    KeepAnEpochWithTheSameStart,
    KeepTheTail,
    SaveEpochsBeforeTheCut,
    ReportWhatIsWritten,
    KeepReportsOfOldDisks,
    ShowWhatIsNotConfirmed,
)
