"""Errors in the core, and in what sends and writes tables, that no method of ``Rules`` can show: one changed place of
the source each, applied in memory."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

REPLICATION = "flintmq.broker.replication"


class CoreMutant(NamedTuple):
    """One changed place: ``text`` of a module, which must be there once, becomes ``replacement``."""

    name: str
    module: str
    text: str
    replacement: str
    package: str = "core"


def _functions(module: ModuleType, namespace: dict[str, Any]) -> Iterator[tuple[str, FunctionType]]:
    """Yield (qualified name, function) of the functions and methods that a module defines itself."""
    for name, value in namespace.items():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            for attribute, member in vars(value).items():
                member = member.fget if isinstance(member, property) else member
                if isinstance(member, FunctionType):
                    yield f"{name}.{attribute}", member
        elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
            yield name, value


@contextmanager
def broken(mutant: CoreMutant) -> Iterator[None]:
    """Run the block with the mutant in the core."""
    module = importlib.import_module(f"{REPLICATION}.{mutant.package}.{mutant.module}")
    source = inspect.getsource(module)
    assert source.count(mutant.text) == 1, f"{mutant.name}: its text is there {source.count(mutant.text)} times"
    changed: dict[str, Any] = {"__name__": module.__name__, "__package__": module.__package__}
    exec(compile(source.replace(mutant.text, mutant.replacement), f"<{mutant.name}>", "exec"), changed)
    own = dict(_functions(module, vars(module)))
    codes = {name: function.__code__ for name, function in own.items()}
    for name, function in _functions(module, changed):
        if function.__code__.co_freevars == own[name].__code__.co_freevars:
            own[name].__code__ = function.__code__
    try:
        yield
    finally:
        for name, code in codes.items():
            own[name].__code__ = code


ACCEPT_OLDER_EPOCHS = CoreMutant(
    "accept_older_epochs", "rules", "return epoch == own_epoch", "return epoch <= own_epoch"
)
ACCEPT_LATER_EPOCHS = CoreMutant(
    "accept_later_epochs", "rules", "return epoch == own_epoch", "return epoch >= own_epoch"
)
ALL_BUT_THE_SLOWEST = CoreMutant(
    "all_but_the_slowest",
    "rules",
    "return min(flushed.get(member, 0) for member in required)",
    "return sorted(flushed.get(member, 0) for member in required)[min(1, len(tuple(required)) - 1)]",
)
SHRINK_BELOW_THE_MINIMUM = CoreMutant(
    "shrink_below_the_minimum", "rules", "if len(members) > config.min_in_sync:", "if len(members) > 1:"
)
ACCEPT_TWO_CONNECTIONS = CoreMutant(
    "accept_two_connections",
    "stream",
    "elif follower.streaming and now - follower.heard_at < 2 * self._limits.heartbeat_s:",
    "elif False:",
)
SHOW_BEFORE_OWN_FLUSH = CoreMutant(
    "show_before_own_flush", "rules", "return min(confirmed, flushed)", "return confirmed"
)
ELECT_WITHOUT_VACANCY = CoreMutant(
    "elect_without_vacancy", "rules", "return holder is None or holder == member == config.primary", "return True"
)
BEGIN_AN_INCOMPLETE_EPOCH = CoreMutant(
    "begin_an_incomplete_epoch",
    "rules",
    "return complete and config.primary == member and config.epoch > last_epoch(epochs)",
    "return config.primary == member and config.epoch > last_epoch(epochs)",
)
LEASE_FROM_ITS_ANSWER = CoreMutant(
    "lease_from_its_answer",
    "replica",
    "self._lease_until = asked + self._limits.lease_s",
    "self._lease_until = now + self._limits.lease_s",
)
LEASE_ENDS_LATE = CoreMutant(
    "lease_ends_late", "rules", "return now < lease_until - margin", "return now < lease_until + margin"
)
SERVE_WITHOUT_LEASE = CoreMutant(
    "serve_without_lease",
    "replica",
    "if self.role is Role.ELECTED and self.primary is not None and saved and self._leads(now):",
    "if self.role is Role.ELECTED and self.primary is not None and saved:",
)
ONLY_THE_NEWEST_PROPOSAL = CoreMutant(
    "only_the_newest_proposal",
    "replica",
    "self.proposals = [each for each in self.proposals if each.config != config] + [proposal]",
    "self.proposals = [proposal]",
)
CUT_AT_THEIR_END = CoreMutant(
    "cut_at_their_end",
    "configuration",
    "return min(_end_of(ours, newest, our_end), _end_of(theirs, newest, their_end))",
    "return min(_end_of(ours, newest, our_end), their_end)",
)
FORGET_OWN_CONFIRMED = CoreMutant(
    "forget_own_confirmed",
    "replica",
    "        self.log.confirmed = max(self.log.confirmed, self.primary.confirmed)\n",
    "",
)
JOIN_BELOW_CONFIRMED = CoreMutant(
    "join_below_confirmed",
    "rules",
    "return flushed >= max(confirmed, epoch_start) and flushed >= own_flushed - gap",
    "return flushed >= epoch_start and flushed >= own_flushed - gap",
)
JOIN_BELOW_THE_START = CoreMutant(
    "join_below_the_start",
    "rules",
    "return flushed >= max(confirmed, epoch_start) and flushed >= own_flushed - gap",
    "return flushed >= confirmed and flushed >= own_flushed - gap",
)
COMPLETE_BELOW_CONFIRMED = CoreMutant(
    "complete_below_confirmed",
    "rules",
    "return flushed >= max(confirmed, epoch_start)\n",
    "return flushed >= epoch_start\n",
)
ALWAYS_COMPLETE = CoreMutant(
    "always_complete", "stream", "is_complete = self._log.complete and not self._log.busy", "is_complete = True"
)
COMPLETE_BEFORE_IT_IS_SAVED = CoreMutant(
    "complete_before_it_is_saved",
    "stream",
    "is_complete = self._log.complete and not self._log.busy",
    "is_complete = self._log.complete",
)
BELIEVE_ANY_POSITION = CoreMutant(
    "believe_any_position",
    "stream",
    "            not lowest <= report.written <= highest\n"
    "            or not self.flushed.get(member, 0) <= report.flushed <= report.written\n",
    "            report.flushed > report.written\n",
)
GONE_WHEN_IT_IS_BACK = CoreMutant(
    "gone_when_it_is_back",
    "stream",
    "(member == self._suspect and not follower.streaming)",
    "not (member == self._suspect and not follower.streaming)",
)
GONE_WHILE_IT_STREAMS = CoreMutant(
    "gone_while_it_streams", "stream", "(member == self._suspect and not follower.streaming)", "member == self._suspect"
)
GONE_AT_ONCE = CoreMutant(
    "gone_at_once", "stream", "(member == self._suspect and not follower.streaming)", "not follower.streaming"
)
NEVER_GONE = CoreMutant("never_gone", "stream", "(member == self._suspect and not follower.streaming)", "False")
CHANGE_BELOW_A_PROPOSAL = CoreMutant(
    "change_below_a_proposal",
    "replica",
    "for config in (self.primary.config, *(each.config for each in self.proposals)):",
    "for config in (self.primary.config,):",
)
DROP_A_CHANGE = CoreMutant(
    "drop_a_change",
    "replica",
    "        if self._is_changing and members != self._change:\n            return self._busy_with_members\n",
    "",
)
HAND_OVER_TO_ONE_ALONE = CoreMutant(
    "hand_over_to_one_alone", "replica", "others if len(others) > 1 else config.in_sync", "others"
)
