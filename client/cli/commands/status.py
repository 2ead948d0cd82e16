"""The commands ``flintmq status`` and ``flintmq check``: the broker's condition, for people and for a monitor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ....protocol.display import JSON, TABLE, show_bytes
from ....protocol.errors import ConnectionFailed, FlintError, RequestTimeout
from ...operator.condition import Condition, Lag, lag_by_group
from ...operator.display import plural, show_count, show_second, show_seconds, shown_name
from ..command import CliCommand, command, pass_settings
from ..failures import describe
from ..output import TableColumn
from ..params import GROUP, SIZE, SPAN, TOPIC, NumberType, RealType
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...sync.admin import Admin

# ---- The command ``flintmq status``.

STYLES = {"broker": "bold", "refuses": "bold red", "not shown": "bold yellow"}


@command("status")
def status(settings: BrokerChoice) -> None:
    """Show the state of the broker. JSON and plain output have all figures, under their protocol names."""
    with settings.admin() as admin:
        info = admin.status()
    if settings.output.mode == TABLE:
        lines = shown(Condition(info), settings.addresses)
        columns = [TableColumn(label, label, style=STYLES.get(label, "")) for label in lines]
        settings.output.record(columns, lines)
    else:
        settings.output.record((), {"address": settings.addresses, **info})


def shown(condition: Condition, address: str) -> dict[str, Any]:
    """Return the lines of the table by their labels, without those that the user may not see or that say nothing."""
    info = condition.info
    name_and_version = f"{info.get('name')} {info.get('version')}"
    if condition.withheld:
        return {
            "broker": name_and_version,
            "address": address,
            "up": show_seconds(condition.number("uptime_seconds")),
            "flush": info.get("flush"),
            "not shown": f"everything else: {condition.withheld}",
        }

    def count(name: str) -> str:
        return show_count(condition.number(name))

    def size(name: str) -> str:
        return show_bytes(condition.number(name))

    def files(name: str) -> str:
        return plural(int(condition.number(name) or 0), "file")

    found = condition.next_deletion
    rows: dict[str, Any] = {
        "broker": f"{name_and_version}, pid {info.get('pid')}",
        "address": address,
        "up": f"{show_seconds(condition.number('uptime_seconds'))}, "
        f"after {show_seconds(condition.number('recovery_seconds'))} of recovery",
        "flush": _flush(condition),
        "store": info.get("store_path"),
        "CommitLog": f"{show_bytes(condition.log_bytes)} in {files('commitlog_files')}",
        "index": files("index_files"),
        "behind": f"flush {show_bytes(condition.flush_behind_bytes)}, "
        f"queues {show_bytes(condition.reput_behind_bytes)}, index {show_bytes(condition.index_behind_bytes)}",
        "disk": _disk(condition),
        "goes next": found and f"{found.file}, {show_second(found.at) if found.at else 'which stays'}: {found.reason}",
        "refuses": condition.write_refusal or None,
        "memory": f"{show_bytes(condition.memory_bytes)}, and {size('mapped_bytes')} of mapped files",
        "topics": count("topics"),
        "groups": f"{count('known_groups')}, of which {_live(condition)}; since start "
        f"{count('retried_messages')} messages retried, {count('dead_messages')} dead",
        "connections": f"{count('connections')} open, {count('connections_accepted')} accepted, "
        f"{count('connections_refused')} refused",
        "in flight": f"{size('in_flight_bytes')}, {count('held_pulls')} held pulls",
        "produced": f"{count('produced_messages')} messages, {size('produced_bytes')}, in {count('produces')} requests",
        "pulled": f"{count('pulled_messages')} messages, {size('pulled_bytes')}, in {count('pulls')} responses",
        "errors": ", ".join(f"{name} {number:,}" for name, number in condition.errors.items()) or "none",
        "metrics": f"http://{info['metrics_address']}/metrics" if info.get("metrics_address") else None,
    }
    return {name: value for name, value in rows.items() if value is not None}


def _live(condition: Condition) -> str:
    groups, members = (int(condition.number(name) or 0) for name in ("groups", "group_members"))
    return f"{groups:,} with {plural(members, 'live member')}" if groups else "none with live members"


def _flush(condition: Condition) -> str:
    policy = str(condition.info.get("flush"))
    p50, p99 = condition.flush_p50_seconds, condition.flush_p99_seconds
    return policy if p99 is None else f"{policy}, p50 {show_seconds(p50)}, p99 {show_seconds(p99)} in the last minute"


def _disk(condition: Condition) -> str:
    free, total = (show_bytes(condition.number(f"disk_{which}_bytes")) for which in ("free", "total"))
    runway = condition.disk_runway_seconds
    lasts = "" if runway is None else f", lasts {show_seconds(runway)} at this rate"
    return f"{free} free of {total} ({condition.disk_free_share or 0:.0%}){lasts}"


# ---- The command ``flintmq check``.

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One figure and its limits. ``low``: the figure is bad below its limits instead of above them."""

    name: str
    value: float | None
    show: Callable[[float | None], str]
    warning: float | None
    critical: float | None
    low: bool = False

    @property
    def state(self) -> int:
        """State of the figure; ``UNKNOWN`` if it has a limit and the broker does not report it."""
        if self.value is None:
            return UNKNOWN if self.warning is not None or self.critical is not None else OK
        for limit, state in ((self.critical, CRITICAL), (self.warning, WARNING)):
            if limit is not None and (self.value < limit if self.low else self.value > limit):
                return state
        return OK

    @property
    def text(self) -> str:
        """The figure in words."""
        return f"{self.name.replace('_', ' ')} {self.show(self.value)}"


class CheckCommand(CliCommand):
    """A command whose invalid command line is UNKNOWN to a monitor; the usual exit code 2 would mean CRITICAL."""

    usage_exit_code = UNKNOWN


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


LIMITS: tuple[tuple[str, click.ParamType, object, object, str], ...] = (  # type: ignore[type-arg] # as in params.py
    ("reput", SIZE, "16Mi", "256Mi", "Bytes of the log that are not in the queues yet."),
    ("index", SIZE, "16Mi", "256Mi", "Bytes of the log that are not in the index yet."),
    ("disk", RealType(0, 100), 15, 5, "Percent of the disk that is free."),
    ("flush", SPAN, "100ms", "1s", "99th percentile of flush times."),
    ("lag", NumberType(0), None, None, "Lag of a group in messages.  [default: no limit]"),
)
"""Figure, type of its limits, default limits for a warning and for a critical state, and meaning."""


def limit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--FIGURE-warning`` and ``--FIGURE-critical`` for each of ``LIMITS``."""
    for figure, kind, warning, critical, meaning in reversed(LIMITS):
        for level, default, text in (("critical", critical, "The same, for CRITICAL."), ("warning", warning, meaning)):
            function = click.option(
                f"--{figure}-{level}",
                type=kind,
                default=default,
                show_default=default is not None,
                metavar="PERCENT" if figure == "disk" else None,
                help=text,
            )(function)
    return function


@click.command("check", cls=CheckCommand)
@pass_settings
@limit_options
@click.option("--group", type=GROUP, default="", help="Group whose lag is checked.  [default: the worst visible one]")
@click.option("--topic", type=TOPIC, default="", help="Topic whose lag is checked.  [default: the sum of all]")
def check(settings: BrokerChoice, group: str, topic: str, **limits: float | None) -> int:
    """Print one line for a monitor. Exit code 0: ok, 1: warning, 2: critical or unreachable, 3: unknown.

    A figure that an older broker does not report counts as ok if its limits are the defaults. The state is UNKNOWN if
    the user may not see the broker's figures (flintmq user grant NAME --query-broker).
    """
    try:
        with settings.admin() as admin:
            condition = Condition(admin.status())
            wants_lag = bool(group or topic or any(limit is not None for limit in _limits(limits, "lag")))
            name, lag = _worst_lag(admin, group, topic) if wants_lag else ("", None)
    except (ConnectionFailed, RequestTimeout) as error:
        return _say(settings, CRITICAL, describe(error)[0], [])
    except FlintError as error:
        return _say(settings, UNKNOWN, describe(error)[0], [])
    findings = [
        CheckFinding("reput_behind", condition.reput_behind_bytes, show_bytes, *_limits(limits, "reput")),
        CheckFinding("index_behind", condition.index_behind_bytes, show_bytes, *_limits(limits, "index")),
        CheckFinding("disk_free", condition.disk_free_share, _share, *_limits(limits, "disk", 1 / 100), low=True),
        CheckFinding("flush_p99", condition.flush_p99_seconds, show_seconds, *_limits(limits, "flush")),
    ]
    findings = [finding for finding in findings if finding.value is not None or _limit_was_given(finding.name)]
    if wants_lag:
        findings.append(_lag_finding(lag, *_limits(limits, "lag")))
    if condition.write_refusal:
        return _say(settings, CRITICAL, f"the broker refuses messages: {condition.write_refusal}", findings)
    states = [finding.state for finding in findings]
    if condition.withheld:
        states.append(UNKNOWN)
    reasons = [condition.withheld] if condition.withheld else []
    if lag is not None and lag.known is None:
        reasons.append(f"the lag of group {shown_name(name)} is not known: {lag.why_unknown}")
    if wants_lag and lag is None:
        where = f" of topic {shown_name(topic)}" if topic else ""
        who = f"group {shown_name(group)} has consumed nothing" if group else "no group has consumed anything"
        reasons.append(f"{who}{where}, or the user may not see it (flintmq group list)")
    return _say(settings, max(states, key=_SEVERITY.index, default=OK), "; ".join(reasons), findings)


_SEVERITY = (OK, UNKNOWN, WARNING, CRITICAL)
"""States from best to worst: a figure that is known to be bad outweighs an unknown one."""


def _limits(limits: Mapping[str, float | None], figure: str, unit: float = 1) -> tuple[float | None, float | None]:
    """Return the limits of a figure for a warning and for a critical state, in units of the figure."""
    warning, critical = (limits[f"{figure}_{level}"] for level in ("warning", "critical"))
    return None if warning is None else warning * unit, None if critical is None else critical * unit


def _limit_was_given(name: str) -> bool:
    """Return whether the command line sets a limit of the figure."""
    ctx = click.get_current_context()
    option = name.partition("_")[0]
    return any(
        ctx.get_parameter_source(f"{option}_{level}") is ParameterSource.COMMANDLINE
        for level in ("warning", "critical")
    )


def _worst_lag(admin: Admin, group: str, topic: str) -> tuple[str, Lag | None]:
    """Return the group whose lag counts, and its lag: first a group whose lag is unknown, then the one with the largest
    lag. The lag is None if no group that the user may see has anything to read."""
    lags = lag_by_group(admin.consume_stats(group or None, topic or None, uncommitted=True))
    if not topic:
        for info in admin.groups():
            if info.partial and group in ("", info.group):
                lags[info.group] = lags.get(info.group, Lag()) + Lag(partial=True)
    if not lags:
        return group, None
    most = max(lag.messages for lag in lags.values())
    name, worst = max(lags.items(), key=lambda item: (item[1].known is None, item[1].messages))
    return name, Lag(most, worst.unknown_queues, worst.partial)


def _lag_finding(lag: Lag | None, warning: float | None, critical: float | None) -> CheckFinding:
    """Return the finding for a lag. A partly known lag is bad if the known part exceeds a limit, else unknown."""
    if lag is None:
        return CheckFinding("lag", None, show_count, warning, critical)
    known = CheckFinding("lag", lag.messages, show_count, warning, critical)
    return CheckFinding("lag", None, show_count, warning, critical) if lag.known is None and not known.state else known


def _say(settings: BrokerChoice, state: int, reason: str, findings: list[CheckFinding]) -> int:
    """Print the line and return the exit code. The figures after the bar are performance data for Nagios."""
    if settings.output.mode == JSON:
        figures = {finding.name: finding.value for finding in findings}
        bad = [finding.name for finding in findings if finding.state != OK]
        settings.output.json({"state": STATES[state], "reason": reason, "bad": bad, **figures})
        return state
    bad_first = sorted(findings, key=lambda finding: -_SEVERITY.index(finding.state))
    text = ", ".join(filter(None, [reason, *(_words(finding) for finding in bad_first)]))
    data = " ".join(f"{finding.name}={finding.value:g}" for finding in findings if finding.value is not None)
    settings.output.line(f"FLINTMQ {STATES[state]}: {text}{f' | {data}' if data else ''}")
    return state


def _words(finding: CheckFinding) -> str:
    return finding.text if finding.state == OK else f"{finding.text} ({STATES[finding.state]})"
