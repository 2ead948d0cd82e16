"""``flintmq check``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ....protocol.errors import ConnectionFailed, FlintError, RequestTimeout
from ..command import Command, pass_settings
from ..condition import Condition
from ..failures import describe
from ..lags import lag_by_group
from ..output import JSON, to_json
from ..params import GROUP, SIZE, SPAN, TOPIC
from ..settings import Settings
from ..units import show_bytes, show_count, show_seconds

if TYPE_CHECKING:
    from ...sync.admin import Admin

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure and its limits. ``low``: a figure below its limits is bad, instead of above."""

    name: str
    value: float | None
    show: Callable[[float | None], str]
    warning: float | None
    critical: float | None
    low: bool = False

    @property
    def state(self) -> int:
        """How the figure is; ``UNKNOWN`` where the broker does not give one that has a limit."""
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


class CheckCommand(Command):
    """For a monitor a wrong command line is UNKNOWN, not CRITICAL."""

    usage_exit_code = UNKNOWN


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


@click.command("check", cls=CheckCommand)
@pass_settings
@click.option("--reput-warning", type=SIZE, default="16Mi", show_default=True, help="Log that queues do not know yet.")
@click.option("--reput-critical", type=SIZE, default="256Mi", show_default=True, help="The same.")
@click.option(
    "--index-warning", type=SIZE, default="16Mi", show_default=True, help="Log that the index does not know yet."
)
@click.option("--index-critical", type=SIZE, default="256Mi", show_default=True, help="The same.")
@click.option("--disk-warning", type=click.FloatRange(0, 100), default=15, show_default=True, help="Per cent free.")
@click.option("--disk-critical", type=click.FloatRange(0, 100), default=5, show_default=True, help="Per cent free.")
@click.option(
    "--flush-warning", type=SPAN, default="100ms", show_default=True, help="99 of 100 flushes take this long."
)
@click.option("--flush-critical", type=SPAN, default="1s", show_default=True, help="The same.")
@click.option("--lag-warning", type=click.IntRange(0), help="Messages that a group is behind.  [default: any]")
@click.option("--lag-critical", type=click.IntRange(0), help="The same.")
@click.option("--group", type=GROUP, default="", help="The group whose lag counts.  [default: the worst]")
@click.option("--topic", type=TOPIC, default="", help="The topic whose lag counts.  [default: all together]")
def check(
    settings: Settings,
    reput_warning: int,
    reput_critical: int,
    index_warning: int,
    index_critical: int,
    disk_warning: float,
    disk_critical: float,
    flush_warning: float,
    flush_critical: float,
    lag_warning: int | None,
    lag_critical: int | None,
    group: str,
    topic: str,
) -> int:
    """One line for a monitor. Exit code 0: ok, 1: warning, 2: critical or not reached, 3: unknown.

    A figure that an older broker does not give counts as ok where its limits are the defaults.
    """
    try:
        with settings.admin() as admin:
            condition = Condition(admin.status())
            wants_lag = bool(group or topic or lag_warning is not None or lag_critical is not None)
            lag = _worst_lag(admin, group, topic) if wants_lag else None
    except (ConnectionFailed, RequestTimeout) as error:
        return _say(settings, CRITICAL, describe(error)[0], [])
    except FlintError as error:
        return _say(settings, UNKNOWN, describe(error)[0], [])
    findings = [
        Finding("reput_behind", condition.reput_behind_bytes, show_bytes, reput_warning, reput_critical),
        Finding("index_behind", condition.index_behind_bytes, show_bytes, index_warning, index_critical),
        Finding("disk_free", condition.disk_free_share, _share, disk_warning / 100, disk_critical / 100, low=True),
        Finding("flush_p99", condition.flush_p99_seconds, show_seconds, flush_warning, flush_critical),
    ]
    findings = [finding for finding in findings if finding.value is not None or _limit_was_given(finding.name)]
    if wants_lag:
        findings.append(Finding("lag", lag, show_count, lag_warning, lag_critical))
    if condition.write_refusal:
        return _say(settings, CRITICAL, f"refuses messages: {condition.write_refusal}", findings)
    worst = max((finding.state for finding in findings), key=_SEVERITY.index, default=OK)
    return _say(settings, worst, "", findings)


_SEVERITY = (OK, UNKNOWN, WARNING, CRITICAL)
"""A figure that is known to be bad says more than one that is not known."""


def _limit_was_given(name: str) -> bool:
    """Whether a limit of the figure stands on the command line."""
    ctx = click.get_current_context()
    option = name.partition("_")[0]
    return any(
        ctx.get_parameter_source(f"{option}_{level}") is ParameterSource.COMMANDLINE
        for level in ("warning", "critical")
    )


def _worst_lag(admin: Admin, group: str, topic: str) -> int | None:
    """The lag of the group that is furthest behind; None where no group has committed anything."""
    return max(lag_by_group(admin.consume_stats(group or None, topic or None)).values(), default=None)


def _say(settings: Settings, state: int, reason: str, findings: list[Finding]) -> int:
    """The line, and its exit code. Behind the bar stand the figures as monitors read them."""
    if settings.output.mode == JSON:
        figures = {finding.name: finding.value for finding in findings}
        bad = [finding.name for finding in findings if finding.state != OK]
        settings.output.write(to_json({"state": STATES[state], "reason": reason, "bad": bad, **figures}) + "\n")
        return state
    bad_first = sorted(findings, key=lambda finding: -_SEVERITY.index(finding.state))
    text = ", ".join(filter(None, [reason, *(_words(finding) for finding in bad_first)]))
    data = " ".join(f"{finding.name}={finding.value:g}" for finding in findings if finding.value is not None)
    settings.output.line(f"FLINTMQ {STATES[state]}: {text}{f' | {data}' if data else ''}")
    return state


def _words(finding: Finding) -> str:
    return finding.text if finding.state == OK else f"{finding.text} ({STATES[finding.state]})"
