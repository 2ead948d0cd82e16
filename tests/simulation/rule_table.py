"""The lint of the rules: for each numbered rule of ``docs/replication.md`` and each half of its condition, an error
that lacks this half, and the schedule that shows it. ``RANDOM`` instead of a schedule: random lives show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flintmq.broker.replication.core.rules import Rules

from . import core_mutants as core
from . import mutants, schedules
from . import table_mutants as tables
from . import table_schedules as with_tables
from .core_mutants import CoreMutant

Schedule = Callable[[Rules], None]
RANDOM: Schedule | None = None


class Half(NamedTuple):
    """One half of a rule's condition."""

    rule: int
    """Number of the rule; 0: a promise beside the numbered rules."""
    text: str
    mutant: type[Rules] | CoreMutant
    shown_by: Schedule | None


HALVES: tuple[Half, ...] = (
    Half(1, "every required member has it", mutants.AcknowledgeAlone, RANDOM),
    Half(1, "the slowest one too", core.ALL_BUT_THE_SLOWEST, RANDOM),
    Half(1, "a member without a report has nothing", mutants.IgnoreSilentMembers, RANDOM),
    Half(1, "as flushed, not as written", mutants.ReportWhatIsWritten, RANDOM),
    Half(
        1, "a report that cannot be true counts for nothing", core.BELIEVE_ANY_POSITION, schedules.report_what_cannot_be
    ),
    Half(
        2,
        "one that must go is required until that is done",
        mutants.ShrinkBeforeItIsDone,
        schedules.remove_a_member_without_learning_of_it,
    ),
    Half(
        2,
        "one that may have come is required at once",
        mutants.ForgetUnknownProposals,
        schedules.add_a_member_without_learning_of_it,
    ),
    Half(
        2,
        "so are those of each open proposal, not only of the newest",
        core.ONLY_THE_NEWEST_PROPOSAL,
        schedules.add_a_member_without_learning_of_it,
    ),
    Half(3, "too few in sync: nothing is acknowledged", mutants.IgnoreTheMinimum, RANDOM),
    Half(3, "none is taken out below the minimum", core.SHRINK_BELOW_THE_MINIMUM, RANDOM),
    Half(4, "a new connection ends earlier reports", mutants.KeepReportsOfOldDisks, RANDOM),
    Half(4, "a second connection is refused", core.ACCEPT_TWO_CONNECTIONS, schedules.follow_twice),
    Half(5, "what is confirmed", mutants.ShowWhatIsNotConfirmed, RANDOM),
    Half(5, "and is on the own disk", core.SHOW_BEFORE_OWN_FLUSH, RANDOM),
    Half(6, "in sync", mutants.LeadFromOutside, RANDOM),
    Half(6, "complete", mutants.LeadWithAnEmptyDisk, RANDOM),
    Half(6, "the lease is free", core.ELECT_WITHOUT_VACANCY, RANDOM),
    Half(
        6,
        "or it is its own from before a restart, as the last primary",
        mutants.TakeOwnLeasesForVacant,
        schedules.hand_over_and_remember_the_own_lease,
    ),
    Half(
        6,
        "the old primary is taken out, if it does not come back",
        core.NEVER_GONE,
        schedules.take_over_without_the_old_primary,
    ),
    Half(6, "but not if it does", core.GONE_WHILE_IT_STREAMS, schedules.come_back_after_a_takeover),
    Half(6, "and no other one", core.GONE_AT_ONCE, schedules.connect_again_soon),
    Half(6, "the right way round", core.GONE_WHEN_IT_IS_BACK, schedules.connect_again_soon),
    Half(7, "an epoch that its log has not seen", mutants.ResumeTheEpoch, RANDOM),
    Half(7, "with a complete log", core.BEGIN_AN_INCOMPLETE_EPOCH, RANDOM),
    Half(8, "the epoch is saved before a message", mutants.ServeBeforeTheEpochIsSaved, RANDOM),
    Half(
        8, "epochs without a byte are dropped", mutants.KeepAnEpochWithTheSameStart, schedules.lead_from_the_same_offset
    ),
    Half(9, "it stops with its lease", mutants.IgnoreTheLease, RANDOM),
    Half(9, "a margin before the end", core.LEASE_ENDS_LATE, RANDOM),
    Half(9, "counted from before the request", core.LEASE_FROM_ITS_ANSWER, schedules.stop_while_the_lease_is_renewed),
    Half(9, "and does not begin without it", core.SERVE_WITHOUT_LEASE, schedules.begin_an_epoch_too_late),
    Half(
        9,
        "nor answers while another one is proposed",
        mutants.AnswerWhileHandingOver,
        schedules.hand_over_without_learning_of_it,
    ),
    Half(10, "a tail that is not common is cut", mutants.KeepTheTail, RANDOM),
    Half(10, "where either log left the common epoch", core.CUT_AT_THEIR_END, RANDOM),
    Half(11, "the epochs after the cut", mutants.SaveEpochsBeforeTheCut, RANDOM),
    Half(12, "what it confirmed itself counts too", core.FORGET_OWN_CONFIRMED, schedules.stop_leading),
    Half(13, "what was confirmed", core.JOIN_BELOW_CONFIRMED, schedules.join_below_what_is_confirmed),
    Half(13, "and what the log had when the epoch began", core.JOIN_BELOW_THE_START, schedules.join_a_new_primary),
    Half(13, "at all", mutants.JoinTooEarly, schedules.join_below_what_is_confirmed),
    Half(
        13, "complete: with the epoch's start", mutants.CompleteTooEarly, schedules.replace_a_disk_under_a_new_primary
    ),
    Half(
        13,
        "complete: with what was confirmed",
        core.COMPLETE_BELOW_CONFIRMED,
        schedules.replace_a_disk_that_the_minimum_needs,
    ),
    Half(13, "its disk says that it is complete", core.ALWAYS_COMPLETE, schedules.join_before_the_mark_is_saved),
    Half(13, "and has it on disk", core.COMPLETE_BEFORE_IT_IS_SAVED, schedules.join_before_the_mark_is_saved),
    Half(14, "of no earlier epoch", core.ACCEPT_OLDER_EPOCHS, schedules.report_in_another_epoch),
    Half(14, "and of no later one", core.ACCEPT_LATER_EPOCHS, schedules.report_in_another_epoch),
    Half(
        0,
        "a change counts with the proposals on their way",
        core.CHANGE_BELOW_A_PROPOSAL,
        schedules.remove_while_another_is_taken_out,
    ),
    Half(0, "two changes in a row: both, or one is refused", core.DROP_A_CHANGE, schedules.change_twice),
    Half(
        0,
        "a switch leaves another one that can lead",
        core.HAND_OVER_TO_ONE_ALONE,
        schedules.hand_over_to_a_disk_that_is_lost,
    ),
    Half(
        0,
        "tables: a follower joins with the tables with which the epoch began",
        tables.FORGET_THE_FIRST_TABLES,
        with_tables.join_with_the_first_tables,
    ),
    Half(
        0,
        "tables: and not before these were read",
        tables.JOIN_BEFORE_TABLES_ARE_READ,
        with_tables.join_with_the_first_tables,
    ),
    Half(
        0,
        "tables: and with each change that was confirmed since",
        tables.JOIN_WITHOUT_A_CONFIRMED_CHANGE,
        with_tables.join_with_what_was_confirmed_since,
    ),
    Half(
        0,
        "tables: a log that began from scratch is complete with all of them",
        tables.COMPLETE_WITHOUT_TABLES,
        with_tables.replace_a_disk_that_gets_no_tables,
    ),
    Half(0, "tables: at all", tables.JOIN_WITHOUT_TABLES, with_tables.join_with_the_first_tables),
    Half(0, "tables: one with an old table leaves", tables.STAY_WITH_OLD_TABLES, with_tables.lag_with_a_table),
    Half(0, "tables: and does not join", tables.JOIN_WITH_OLD_TABLES, with_tables.lag_with_a_table),
    Half(
        0,
        "tables: a switch waits for the tables",
        tables.SWITCH_WITHOUT_TABLES,
        with_tables.hand_over_with_the_newest_tables,
    ),
    Half(
        0,
        "tables: as they are at the switch",
        tables.SWITCH_WITH_OLD_TABLES,
        with_tables.hand_over_with_the_newest_tables,
    ),
    Half(
        0,
        "tables: once these were read",
        tables.SWITCH_BEFORE_TABLES_ARE_READ,
        with_tables.hand_over_with_the_newest_tables,
    ),
    Half(0, "tables: a change is confirmed by enough members", tables.CONFIRM_BELOW_THE_MINIMUM, RANDOM),
    Half(0, "tables: by all of them", tables.CONFIRM_BY_THE_FASTEST, RANDOM),
    Half(0, "tables: which are connected", tables.CONFIRM_WITHOUT_A_CONNECTION, RANDOM),
    Half(0, "tables: and have said so on this connection", tables.CONFIRM_AT_A_CONNECTION, RANDOM),
    Half(0, "tables: of the tables of this connection", tables.COUNT_ON, with_tables.connect_again_with_old_tables),
    Half(0, "tables: not when it is sent", tables.CONFIRM_WHAT_IS_SENT, with_tables.lag_with_a_table),
    Half(
        0,
        "tables: nor while it waits for the line",
        tables.CONFIRM_WHAT_WAITS,
        with_tables.change_while_the_line_is_full,
    ),
    Half(
        0,
        "tables: nor when a newer one takes its place there",
        tables.CONFIRM_WHAT_IS_REPLACED,
        with_tables.change_while_the_line_is_full,
    ),
    Half(
        0,
        "tables: nor while the follower's disk writes it",
        tables.REPORT_WHAT_IS_BEING_WRITTEN,
        with_tables.lag_with_a_table,
    ),
    Half(0, "tables: nor while it waits for the disk", tables.REPORT_WHAT_WAITS, RANDOM),
    Half(0, "tables: nor when a newer one takes its place there, too", tables.REPORT_WHAT_WAITED_BEFORE, RANDOM),
    Half(
        0,
        "tables: nothing of an earlier primary is written once a member leads",
        tables.LEAD_BEFORE_TABLES_ARE_WRITTEN,
        with_tables.lead_while_a_table_is_written,
    ),
)
"""Rule 12's first half, that it never cuts below what it has seen confirmed, has a test of its own in
``test_replication.py``: only a wrong primary can ask for such a cut."""
