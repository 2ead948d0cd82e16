"""The invariants, checked at every step of a simulated replica set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .disk import Record, Rows, Violation
from .tables import ACKNOWLEDGED

if TYPE_CHECKING:
    from flintmq.broker.replication.core.configuration import SetConfig

    from .member import Member
    from .world import World


class Judge:
    """Knows every record that was ever acknowledged or shown, and who led when."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._safe: list[Record] = []
        """The confirmed log. Every member's log must begin like this, as far as it is confirmed there."""
        self._starts: dict[int, int] = {}
        self._leaders: dict[int, tuple[str, int]] = {}
        self._latest: tuple[int, Member, int] | None = None
        self.acknowledged = 0
        self._changed: Rows = {}
        """The newest acknowledged change of each row of a table."""
        self.changes = 0
        """Number of acknowledged changes of tables."""
        self.leaderships = 0

    @property
    def safe_end(self) -> int:
        """Physical offset below which the log is confirmed."""
        return self._safe[-1].end if self._safe else 0

    def leads(self, member: Member, epoch: int) -> None:
        """Check a member that begins to serve: it has everything that was ever confirmed, and its epoch is its own."""
        self.leaderships += 1
        if self._leaders.setdefault(epoch, (member.name, member.life)) != (member.name, member.life):
            self._fail(f"{member.name} leads epoch {epoch}, which {self._leaders[epoch]} has led")
        if member.disk.end < self.safe_end:
            self._fail(f"{member.name} leads with a log that ends at {member.disk.end}, below {self.safe_end}")
        self._compare(member, self.safe_end)
        self._check_rows(member, self._changed)
        for other in self._world.members.values():
            if other is not member and other.may_answer:
                self._fail_unless_quick(f"{other.name} may answer in epoch {other.leads}; {member.name} leads {epoch}")
        if self._latest is None or epoch > self._latest[0]:
            self._latest = epoch, member, member.life

    def confirmed(self, member: Member, offset: int) -> None:
        """Check what a member acknowledges, if it leads, and shows to consumers."""
        if offset > self.safe_end:
            if not member.leads:
                self._fail(f"{member.name} shows its log up to {offset}; it is confirmed up to {self.safe_end}")
            self._check_copies(member, offset)
            for record in member.disk.between(self.safe_end, offset):
                self._starts[record.start] = len(self._safe)
                self._safe.append(record)
            self.acknowledged += 1
            self._check_latest(member, offset)
        self._compare(member, offset)

    def changed(self, member: Member, key: str, change: tuple[int, int]) -> None:
        """Check a change of a table that a member acknowledges: a change is as safe as a message."""
        members = self._world.members.values()
        copies = sum(
            each.replaced or each.disk.tables.get(ACKNOWLEDGED, {}).get(key, (0, 0)) >= change for each in members
        )
        if copies < self._world.registry.config.min_in_sync:
            self._fail(f"{member.name} acknowledges the change {change} of {key}, which is on {copies} disks")
        self._changed[key] = max(change, self._changed.get(key, change))
        self.changes += 1
        if self._latest is not None:
            epoch, leader, life = self._latest
            if epoch > member.leads and leader.life == life:
                self._check_rows(leader, {key: change})

    def table_replaced(self, member: Member, name: str) -> None:
        """Check a member that takes over a table: it follows."""
        if member.leads:
            self._fail(f"{member.name} leads epoch {member.leads}, and takes over {name} of an earlier primary")

    def _check_rows(self, member: Member, changes: Rows) -> None:
        """Check that a member that leads has these changes, or later ones, in memory and on disk."""
        for rows in (member.tables[ACKNOWLEDGED].rows, member.disk.tables.get(ACKNOWLEDGED, {})):
            for key, change in changes.items():
                if rows.get(key, (0, 0)) < change:
                    self._fail(f"{member.name} leads with {rows.get(key)} of {key}, which had {change}")

    def answered(self, member: Member, epoch: int) -> None:
        """Check an answer that only the one leader may give: no member has begun to lead a later epoch."""
        if self._latest is not None and self._latest[0] > epoch:
            self._fail_unless_quick(f"{member.name} answers in epoch {epoch}; {self._latest[1].name} leads later")

    def configured(self, before: SetConfig, after: SetConfig) -> None:
        """Check a configuration that the registry takes: no change makes fewer members in sync than the minimum."""
        if len(after.in_sync) < min(after.min_in_sync, len(before.in_sync)):
            self._fail(f"{sorted(after.in_sync)} are in sync, the minimum is {after.min_in_sync}")
        if not after.in_sync <= after.members or after.primary not in after.in_sync:
            self._fail(f"{after} has members in sync that are not members, or a primary that is not in sync")

    def stopped(self, member: Member, reason: str) -> None:
        """No fault of the simulator needs a person."""
        self._fail(f"{member.name} stopped: {reason}")

    def _compare(self, member: Member, offset: int) -> None:
        """Compare a member's log below ``offset`` with what was confirmed."""
        records = member.disk.between(member.disk.begin, offset)
        if not records:
            return
        first = self._starts.get(records[0].start)
        if first is None or tuple(self._safe[first : first + len(records)]) != records:
            self._fail(f"{member.name} has other records below {offset} than those that were confirmed")
        if records[-1].end != offset and offset <= member.disk.end:
            self._fail(f"{member.name} confirms {offset}, which is inside a record")

    def _check_copies(self, member: Member, offset: int) -> None:
        config = self._world.registry.config
        copies = sum(each.replaced or each.disk.flushed >= offset for each in self._world.members.values())
        if copies < config.min_in_sync:
            self._fail(f"{member.name} acknowledges {offset}, which is on {copies} disks")

    def _check_latest(self, member: Member, offset: int) -> None:
        """Check what an old leader acknowledges although another leads: the other must have it."""
        if self._latest is None:
            return
        epoch, leader, life = self._latest
        if epoch > member.leads and leader.life == life:
            if leader.disk.end < offset:
                self._fail(f"{member.name} acknowledges {offset} in an old epoch; {leader.name} has less")
            self._compare(leader, offset)

    def _fail_unless_quick(self, text: str) -> None:
        """A takeover before the lease ends promises nothing about such answers."""
        if not self._world.limits.quick_takeover:
            self._fail(text)

    def _fail(self, text: str) -> None:
        raise Violation(f"seed {self._world.seed}, after {self._world.now:.3f} s: {text}")
