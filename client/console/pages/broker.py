"""The broker: how it is and what goes through it, its settings, its store, and its connections."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from starlette.responses import Response

from ....protocol.auth.permissions import ADMIN, QUERY
from ....protocol.commands import CONNECTIONS_MAX, ConnectionInfo, ConsumeStats, QuarantineEntry, Setting, TopicTotals
from ....protocol.display import show_bytes
from ....protocol.rows import Display
from ....protocol.storage.delivery import dead_letter_topic
from ...operator.condition import Condition, Lag, lag_by_group
from ...operator.dead_letters import waiting_by_group
from ...operator.display import plural, show_seconds, show_value
from ..failures import Refused
from ..render import columns_of, plot
from ..sampler import Sampler
from ..visit import Visit, whole_number

# ---- Overview: how the broker is, what goes through it, and which groups need attention.

OVERVIEW_ROWS_MAX = 5
CHANGES_SHOWN = 10
BEHIND_BYTES_MAX = 16 << 20
"""Bytes that queues, index or flush may be behind, as in ``flintmq check``."""
FREE_SHARE_MIN = 0.15
FLUSH_SECONDS_MAX = 0.1
RUNWAY_SECONDS_MIN = 24 * 3600


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One part of the broker's health in words."""

    is_good: bool
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """Dead letters of a group. ``grew``: number of those that came during the last minute, None if unknown."""

    group: str
    waiting: int
    grew: int | None


async def overview(visit: Visit) -> Response:
    """Return the state of the broker: two requests besides the status of the bar."""
    sampler = visit.console.sampler(visit.session)
    dead = await sampler.dead_letters(visit.session)
    stats = await visit.admin.consume_stats(uncommitted=True)
    sampler.changes.saw_progress(stats)
    history = sampler.history()
    return await visit.page(
        "overview.html",
        health=health,
        plot=plot(history),
        last=history[-1] if history else None,
        lags=_worst_lags(stats),
        dead=_dead_letters(dead, stats, sampler),
        changes=sampler.changes,
        changes_shown=CHANGES_SHOWN,
        rows_max=OVERVIEW_ROWS_MAX,
    )


def health(condition: Condition) -> list[HealthFinding]:
    """Return what is good and what is not, the latter first. A figure that is withheld is left out."""
    refusal = condition.write_refusal
    found = [HealthFinding(not refusal, "Messages", f"refused: {refusal}" if refusal else "accepted")]
    for name, behind in (
        ("Flush", condition.flush_behind_bytes),
        ("Queues", condition.reput_behind_bytes),
        ("Index", condition.index_behind_bytes),
    ):
        if behind is not None:
            text = f"{show_bytes(behind)} behind the log" if behind else "up to date"
            found.append(HealthFinding(behind <= BEHIND_BYTES_MAX, name, text))
    if (p99 := condition.flush_p99_seconds) is not None:
        found.append(
            HealthFinding(p99 <= FLUSH_SECONDS_MAX, "Flush time", f"p99 {show_seconds(p99)} in the last minute")
        )
    found += _disk(condition)
    if (holes := condition.number("quarantined_holes")) is not None:
        lost = plural(int(condition.number("lost_messages") or 0), "lost message")
        text = f"{plural(int(holes), 'damaged range')}, {lost}" if holes else "empty"
        found.append(HealthFinding(not holes, "Quarantine", text))
    return sorted(found, key=lambda each: each.is_good)


def _disk(condition: Condition) -> list[HealthFinding]:
    free, share = condition.number("disk_free_bytes"), condition.disk_free_share
    if free is None or share is None:
        return []
    runway = condition.disk_runway_seconds
    lasts = "" if runway is None else f", lasts {show_seconds(runway)} at the rate of the last minute"
    is_good = share >= FREE_SHARE_MIN and (runway is None or runway >= RUNWAY_SECONDS_MIN)
    return [HealthFinding(is_good, "Disk", f"{show_bytes(free)} free ({share:.0%}){lasts}")]


def _worst_lags(stats: list[ConsumeStats]) -> list[tuple[str, Lag]]:
    lags = sorted(lag_by_group(stats).items(), key=lambda item: item[1].messages, reverse=True)
    return [item for item in lags if item[1].messages][:OVERVIEW_ROWS_MAX]


def _dead_letters(topics: list[TopicTotals], stats: list[ConsumeStats], sampler: Sampler) -> list[DeadLetterRow]:
    """Return the groups with dead letters that wait, the one that grew most first."""
    rows = [
        DeadLetterRow(group, waiting, sampler.growth(dead_letter_topic(group)))
        for group, waiting in waiting_by_group(topics, stats).items()
        if waiting > 0  # the topics' figures may be older than the groups' offsets
    ]
    return sorted(rows, key=lambda row: (row.grew or 0, row.waiting), reverse=True)


# ---- Settings of the broker: the list, and the form that changes one while the broker runs.


SETTING_COLUMNS = columns_of(
    Setting, "name value at_start rule hot", value="Now", rule=Display("must be", fold=True), hot="While running"
)


async def setting_list(visit: Visit) -> Response:
    """Return all settings, or only those whose name contains a text, that can be changed, or that were changed."""
    wanted, hot, changed = visit.text("q"), visit.text("hot") == "1", visit.text("changed") == "1"
    known = await visit.admin.settings()
    marked = [each for each in known if each.value != each.at_start]
    rows = [
        each for each in (marked if changed else known) if wanted.lower() in each.name.lower() and (each.hot or not hot)
    ]
    return await visit.page(
        "settings.html",
        rows=rows,
        total=len(known),
        marked=marked,
        wanted=wanted,
        hot=hot,
        changed=changed,
        columns=SETTING_COLUMNS,
        show=show_value,
        may_change=visit.may(ADMIN),
    )


async def setting(visit: Visit) -> Response:
    found = await _find(visit)
    return await visit.page("setting.html", setting=found, show=show_value, may_change=visit.may(ADMIN))


async def change_setting(visit: Visit) -> Response:
    """Change one setting, if it still has the value that the person saw."""
    visit.check_writable()
    form = await visit.form()
    found = await _find(visit)
    if form.get("before") != show_value(found.value):
        raise Refused(
            409,
            f"{found.name} has changed in the meantime: it is {show_value(found.value)!r} now; nothing was changed, "
            "open its form again",
        )
    changed = await visit.admin.change_settings({found.name: form.get("value", "").strip()})
    texts = [f"{each.name} is {show_value(each.after)}, it was {show_value(each.before)}" for each in changed]
    return visit.done(
        f"{'; '.join(texts) or found.name + ' had that value already'} (until the broker restarts)",
        f"/settings#s-{quote(found.name)}",
    )


async def _find(visit: Visit) -> Setting:
    name = visit.path("name")
    found = next((each for each in await visit.admin.settings() if each.name == name), None)
    if found is None:
        raise Refused(404, f"the broker has no setting {name}")
    return found


# ---- Store: how far the parts of the broker's log are, what retention keeps, and what is in quarantine.

QUARANTINE_COLUMNS = columns_of(
    QuarantineEntry,
    "physical_offset bytes found_at stored_at lost_messages lost reason",
    physical_offset="Physical offset",
    reason="Damage and file",
)
BAR_WIDTH = 1000
ENTRIES_MAX = 100
RANGES_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A place in the log. ``at``: its physical offset; ``behind``: bytes from there to the end of the log;
    ``seconds``: how long the oldest of these bytes has waited, None if that means nothing here; ``x``: its place in a
    bar of ``BAR_WIDTH``."""

    name: str
    meaning: str
    at: int
    behind: int
    seconds: float | None
    x: float


async def store(visit: Visit) -> Response:
    """Return the state of the store: two requests besides the status of the bar."""
    may_see = visit.may(QUERY)
    after = visit.number("after", -1, 0, 2**63 - 1)
    entries: list[QuarantineEntry] = []
    settings: list[Setting] = []
    steps: list[str] = []
    if may_see:
        found_ms = visit.number("found", 0, 0, 2**63 - 1)
        # The broker only needs the place of the entry after which the page begins.
        last = QuarantineEntry(after, 0, "", found_ms, 0, "", 0, 0, []) if after >= 0 else None
        entries = await visit.admin.quarantine(last, max_count=ENTRIES_MAX)
        settings = [each for each in await visit.admin.settings() if each.name.startswith("retention.")]
        steps = retention_steps(settings, await visit.session.status(time.monotonic()))
    return await visit.page(
        "store.html",
        may_see=may_see,
        marks=marks,
        entries=entries,
        columns=QUARANTINE_COLUMNS,
        is_first=after < 0,
        next_entry=entries[-1] if len(entries) == ENTRIES_MAX else None,
        ranges_max=RANGES_SHOWN_MAX,
        settings=settings,
        retention_steps=steps,
    )


def marks(condition: Condition) -> list[LogPlace]:
    """Return the places of the log in their order, the newest first; empty if the broker does not report them."""
    oldest, written = condition.number("min_physical_offset"), condition.number("write_offset")
    if oldest is None or written is None:
        return []
    places: list[tuple[str, str, float, float | None]] = [("written", "the end of the log", written, None)]
    for name, meaning, behind, stage in (
        ("flushed", "on disk up to here", condition.flush_behind_bytes, "flush"),
        ("queues", "readable by consumers up to here (reput)", condition.reput_behind_bytes, "reput"),
        ("index", "found by key up to here", condition.index_behind_bytes, "reput"),
        (
            "checkpoint",
            "queues and index are on disk up to here; a start after a crash dispatches the rest again",
            condition.checkpoint_behind_bytes,
            "checkpoint",
        ),
    ):
        if behind is not None:
            places.append((name, meaning, written - behind, condition.behind_seconds(stage)))
    places.append(("oldest", "the first message that is kept", oldest, None))
    size = max(1.0, written - oldest)
    return [
        LogPlace(name, meaning, int(at), int(written - at), waited, round(BAR_WIDTH * max(0.0, at - oldest) / size, 1))
        for name, meaning, at, waited in places
    ]


def retention_steps(settings: Iterable[Setting], condition: Condition) -> list[str]:
    """Return in words what retention deletes, when, and which rule applies now; empty if the broker does not report the
    settings or the disk."""
    now = {each.name.removeprefix("retention."): each.value for each in settings}
    free, share = condition.number("disk_free_bytes"), condition.disk_free_share
    if free is None or share is None or not now:
        return []
    clean, force, refuse = (int(now[f"disk_{level}_percent"]) for level in ("clean", "force", "refuse"))
    headroom = int(now["headroom_bytes"])
    hours = " and ".join(f"{hour}:00" for hour in str(now["delete_when"]).split(";"))
    old = f"whose newest message is older than {int(now['file_reserved_hours']):,} h"
    used = 100 * (1 - share)
    if free >= headroom or used < clean:
        at_present = f"files are deleted only at {hours}"
    elif used < force:
        at_present = "files of that age are deleted at any hour"
    else:
        at_present = "the oldest file is deleted next, whatever its age"
        at_present += ", and messages are refused" if used >= refuse else ""
    return [
        f"Files of the log {old} are deleted at {hours} in the broker's time zone, the oldest first; the last file and "
        "files with messages that are still to be delivered stay.",
        f"If less than {show_bytes(headroom)} of the disk is free, its use counts: from {clean} % files of that age "
        f"are deleted at any hour, from {force} % the oldest files whatever their age, and from {refuse} % the broker "
        "refuses messages.",
        f"Now {show_bytes(free)} is free and {used:.0f} % is used: {at_present}.",
    ]


# ---- Clients: the broker's open connections, and closing one.

ROWS_MAX = 200
CLIENT_COLUMNS = columns_of(
    ConnectionInfo, "address user client opened_at idle_seconds frames_in bytes_in bytes_out held_pulls tls"
)
CLOSE_COLUMN = columns_of(ConnectionInfo, "close", close=Display("Close"))
REQUESTS_MAX = 2
"""Maximum number of requests of a page; a search examines at most this many times ``CONNECTIONS_MAX`` connections."""


async def client_list(visit: Visit) -> Response:
    """Return the connections whose address, user or client name contains a text."""
    wanted = visit.text("q")
    rows, examined, next_after = await _connections(visit, wanted.lower(), visit.number("after", 0, 0, 2**63 - 1))
    return await visit.page(
        "clients.html",
        rows=rows,
        examined=examined,
        next_after=next_after,
        columns=CLIENT_COLUMNS + (CLOSE_COLUMN if visit.may(ADMIN) else ()),
        wanted=wanted,
        after=visit.text("after"),
    )


async def connection(visit: Visit) -> Response:
    number = int(visit.path("connection"))
    found = await visit.admin.connections(max(0, number - 1), max_count=1)
    if not found or found[0].id != number:
        raise Refused(404, f"connection {number} is not open any more")
    return await visit.page("connection.html", row=found[0], may_close=visit.may(ADMIN))


async def close_connection(visit: Visit) -> Response:
    visit.check_writable()
    number, form = int(visit.path("connection")), await visit.form()
    # Numbers begin again when the broker restarts: the time tells which connection the person saw.
    opened_ms = whole_number("opened", form.get("opened", ""), -1, -1, 2**63 - 1)
    await visit.admin.close_connection(number, opened_ms)
    return visit.done(f"connection {number} is closed; its client may connect again", "/clients")


async def _connections(visit: Visit, wanted: str, after: int) -> tuple[list[ConnectionInfo], int, int | None]:
    """Return the connections of a page by id, the number of those that were looked at, and the id after which the next
    page begins, None on the last one."""
    # Without a search, one row more than a page shows tells whether there is another page.
    size = CONNECTIONS_MAX if wanted else ROWS_MAX + 1
    rows: list[ConnectionInfo] = []
    examined, last = 0, after
    for _ in range(REQUESTS_MAX):
        page = await visit.admin.connections(last, max_count=size)
        for each in page:
            if wanted not in f"{each.address} {each.user} {each.client}".lower():
                continue
            if len(rows) == ROWS_MAX:
                return rows, examined + page.index(each), rows[-1].id
            rows.append(each)
        examined += len(page)
        if len(page) < size:
            return rows, examined, None
        last = page[-1].id
    return rows, examined, last
