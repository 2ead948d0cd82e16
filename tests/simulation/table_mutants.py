"""Errors in the rules of the tables, one changed place each."""

from __future__ import annotations

from .core_mutants import CoreMutant


def _member(name: str, module: str, text: str, replacement: str) -> CoreMutant:
    return CoreMutant(name, module, text, replacement, "member")


JOIN_WITHOUT_TABLES = CoreMutant(
    "join_without_tables",
    "stream",
    "            and self._log.has_tables(member)\n            and self._log.tables",
    "            and self._log.tables",
)
COMPLETE_WITHOUT_TABLES = CoreMutant("complete_without_tables", "stream", " and log.has_all_tables()", "")
JOIN_WITH_OLD_TABLES = CoreMutant(
    "join_with_old_tables", "stream", "            and self._log.tables_behind_s(member) <= self._limits.lag_s\n", ""
)
STAY_WITH_OLD_TABLES = CoreMutant(
    "stay_with_old_tables",
    "stream",
    "return max(now - self.followers[member].behind_since, self._log.tables_behind_s(member))",
    "return now - self.followers[member].behind_since",
)
SWITCH_WITHOUT_TABLES = CoreMutant(
    "switch_without_tables", "stream", "== self.confirmed and self._log.has_tables(member)", "== self.confirmed"
)
SWITCH_WITH_OLD_TABLES = CoreMutant("switch_with_old_tables", "replica", "        self.log.need_tables()\n", "")
SWITCH_BEFORE_TABLES_ARE_READ = _member(
    "switch_before_tables_are_read",
    "links",
    "self._needed is not None and not self._needs and",
    "self._needed is not None and",
)
CONFIRM_BELOW_THE_MINIMUM = CoreMutant(
    "confirm_below_the_minimum", "stream", "- {self._member} if self.may_acknowledge else None", "- {self._member}"
)
CONFIRM_BY_THE_FASTEST = _member(
    "confirm_by_the_fastest",
    "links",
    "saved = min(map(self._saved_by, members)",
    "saved = max(map(self._saved_by, members)",
)
CONFIRM_WITHOUT_A_CONNECTION = _member(
    "confirm_without_a_connection",
    "links",
    "        if link is None:\n            return 0\n",
    "        if link is None:\n            return self._count\n",
)
CONFIRM_AT_A_CONNECTION = _member(
    "confirm_at_a_connection", "links", "link.put(name, 1, content", "link.put(name, self._count, content"
)
FORGET_THE_FIRST_TABLES = _member(
    "forget_the_first_tables",
    "links",
    "                self._needed = self._count\n",
    "                self._needed = 0\n",
)
JOIN_BEFORE_TABLES_ARE_READ = _member(
    "join_before_tables_are_read",
    "links",
    "return self._needed is not None and not self._needs and self._saved_by(member) >= self._needed",
    "return not self._needs and self._saved_by(member) >= (self._needed or 0)",
)
JOIN_WITHOUT_A_CONFIRMED_CHANGE = _member(
    "join_without_a_confirmed_change",
    "links",
    "            self._needed = max(self._needed or 0, number)\n            call()",
    "            call()",
)
CONFIRM_WHAT_IS_REPLACED = _member(
    "confirm_what_is_replaced",
    "links",
    "(earlier.first, earlier.since) if earlier is not None else",
    "(change, earlier.since) if earlier is not None else",
)
CONFIRM_WHAT_IS_SENT = _member(
    "confirm_what_is_sent",
    "links",
    "                self._sent.append((self.versions, version.first, version.since))\n",
    "",
)
CONFIRM_WHAT_WAITS = _member("confirm_what_waits", "links", ", *((each.first, each.since) for each in waiting)]", "]")
REPORT_WHAT_IS_BEING_WRITTEN = _member(
    "report_what_is_being_written",
    "tables",
    "[*self._waiting.values(), *([self._writing] if self._writing is not None else [])]",
    "[*self._waiting.values()]",
)
REPORT_WHAT_WAITS = _member(
    "report_what_waits",
    "tables",
    "[*self._waiting.values(), *([self._writing] if self._writing is not None else [])]",
    "[*([self._writing] if self._writing is not None else [])]",
)
REPORT_WHAT_WAITED_BEFORE = _member(
    "report_what_waited_before",
    "tables",
    "first = earlier.first if earlier is not None and is_newer else part.version",
    "first = part.version",
)
COUNT_ON = _member("count_on", "links", "            self._tables.begin(number)\n", "")
LEAD_BEFORE_TABLES_ARE_WRITTEN = _member(
    "lead_before_tables_are_written",
    "tables",
    "while self._work is not None and self._writing is not None:",
    "while False:",
)
