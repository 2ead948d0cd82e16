"""The command ``flintmq status``."""

from __future__ import annotations

from typing import Any

from ....protocol.display import TABLE, show_bytes
from ...operator.condition import Condition
from ...operator.display import plural, show_count, show_second, show_seconds
from ..command import command
from ..output import TableColumn
from ..settings import BrokerChoice

COLUMNS = (
    TableColumn("broker", "broker", style="bold"),
    TableColumn("address", "address"),
    TableColumn("up", "up"),
    TableColumn("flush", "flush"),
    TableColumn("store", "store"),
    TableColumn("commitlog", "CommitLog"),
    TableColumn("index", "index"),
    TableColumn("behind", "behind"),
    TableColumn("disk", "disk"),
    TableColumn("next_deletion", "goes next"),
    TableColumn("refusal", "refuses", style="bold red"),
    TableColumn("memory", "memory"),
    TableColumn("topics", "topics"),
    TableColumn("groups", "groups"),
    TableColumn("connections", "connections"),
    TableColumn("in_flight", "in flight"),
    TableColumn("produced", "produced"),
    TableColumn("pulled", "pulled"),
    TableColumn("errors", "errors"),
    TableColumn("metrics", "metrics"),
    TableColumn("withheld", "not shown", style="bold yellow"),
)


@command("status")
def status(settings: BrokerChoice) -> None:
    """Show the state of the broker. JSON and plain output have all figures, under their protocol names."""
    with settings.admin() as admin:
        info = admin.status()
    if settings.output.mode == TABLE:
        settings.output.record(COLUMNS, shown(Condition(info), settings.addresses))
    else:
        settings.output.record((), {"address": settings.addresses, **info})


def shown(condition: Condition, address: str) -> dict[str, Any]:
    """Return the lines of the table, without those whose figures an older broker does not report or the user may not
    see."""
    info = condition.info
    if condition.withheld:
        return {
            "broker": f"{info.get('name')} {info.get('version')}",
            "address": address,
            "up": show_seconds(condition.number("uptime_seconds")),
            "flush": info.get("flush"),
            "withheld": f"everything else: {condition.withheld}",
        }
    rows: dict[str, Any] = {
        "broker": f"{info.get('name')} {info.get('version')}, pid {info.get('pid')}",
        "address": address,
        "up": f"{show_seconds(condition.number('uptime_seconds'))}, "
        f"after {show_seconds(condition.number('recovery_seconds'))} of recovery",
        "flush": _flush(condition),
        "store": info.get("store_path"),
        "commitlog": show_bytes(condition.log_bytes) + _files(condition, "commitlog_files"),
        "index": _files(condition, "index_files").removeprefix(" in ") or None,
        "behind": f"flush {show_bytes(condition.flush_behind_bytes)}, "
        f"queues {show_bytes(condition.reput_behind_bytes)}, index {show_bytes(condition.index_behind_bytes)}",
        "disk": _disk(condition),
        "next_deletion": _next_deletion(condition),
        "refusal": condition.write_refusal or None,
        "memory": f"{show_bytes(condition.memory_bytes)}, and {show_bytes(condition.number('mapped_bytes'))} "
        "of mapped files",
        "topics": show_count(condition.number("topics")),
        "groups": _groups(condition),
        "connections": f"{_count(condition, 'connections')} open, {_count(condition, 'connections_accepted')} "
        f"accepted, {_count(condition, 'connections_refused')} refused",
        "in_flight": f"{show_bytes(condition.number('in_flight_bytes'))}, {_count(condition, 'held_pulls')} held pulls",
        "produced": f"{_count(condition, 'produced_messages')} messages, "
        f"{show_bytes(condition.number('produced_bytes'))}, in {_count(condition, 'produces')} requests",
        "pulled": f"{_count(condition, 'pulled_messages')} messages, "
        f"{show_bytes(condition.number('pulled_bytes'))}, in {_count(condition, 'pulls')} responses",
        "errors": ", ".join(f"{name} {count:,}" for name, count in condition.errors.items()) or "none",
        "metrics": f"http://{info['metrics_address']}/metrics" if info.get("metrics_address") else None,
    }
    return {name: value for name, value in rows.items() if value is not None}


def _groups(condition: Condition) -> str | None:
    running = condition.number("groups")
    if running is None:  # an older broker
        return None
    known = condition.number("known_groups")
    members = plural(int(condition.number("group_members") or 0), "live member")
    live = f"{running:,.0f} with {members}" if running else "none with live members"
    return (
        f"{'' if known is None else f'{known:,.0f}, of which '}{live}; since start "
        f"{_count(condition, 'retried_messages')} messages retried, {_count(condition, 'dead_messages')} dead"
    )


def _count(condition: Condition, name: str) -> str:
    return show_count(condition.number(name))


def _files(condition: Condition, name: str) -> str:
    files = condition.number(name)
    return "" if files is None else f" in {files:,.0f} file{'' if files == 1 else 's'}"


def _flush(condition: Condition) -> str:
    policy = str(condition.info.get("flush"))
    p50, p99 = condition.flush_p50_seconds, condition.flush_p99_seconds
    return policy if p99 is None else f"{policy}, p50 {show_seconds(p50)}, p99 {show_seconds(p99)} in the last minute"


def _next_deletion(condition: Condition) -> str | None:
    found = condition.next_deletion
    if found is None:
        return None
    return f"{found.file}, {show_second(found.at) if found.at else 'which stays'}: {found.reason}"


def _disk(condition: Condition) -> str | None:
    free, share = condition.number("disk_free_bytes"), condition.disk_free_share
    if free is None or share is None:
        return None
    runway = condition.disk_runway_seconds
    lasts = "" if runway is None else f", lasts {show_seconds(runway)} at this rate"
    return f"{show_bytes(free)} free of {show_bytes(condition.number('disk_total_bytes'))} ({share:.0%}){lasts}"
