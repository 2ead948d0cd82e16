"""Store: how far the parts of the broker's log are, what retention keeps, and what is in quarantine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.responses import Response

from ....protocol.auth.permissions import QUERY
from ....protocol.display import show_bytes
from ...core.admin.quarantine import QuarantineEntry
from ...core.admin.settings import Setting
from ...operator.condition import Condition
from ..visit import Visit

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
