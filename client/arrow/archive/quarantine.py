"""The damaged ranges of a log that now contain tombstones, from the store's ``flintmq/quarantine/index.json``."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from .errors import SKIP_HINT, CorruptLog

INDEX = Path("flintmq", "quarantine", "index.json")

logger = logging.getLogger(__name__)


def quarantined_ranges(store: Path | None, *, fail_on_corruption: bool) -> list[tuple[int, int]]:
    """Return (begin, end) of each, in order of physical offset; none if the store's folder is unknown.

    Raises ``CorruptLog`` if neither the index nor its .bak can be read; without ``fail_on_corruption`` it logs that,
    and tombstones are read as messages.
    """
    if store is None:
        return []
    problem: Exception | None = None
    path = store / INDEX
    for each in (path, path.with_name(path.name + ".bak")):
        try:
            holes = json.loads(each.read_text(encoding="utf-8"))["holes"]
            return sorted(
                (int(hole["physicalOffset"]), int(hole["physicalOffset"]) + int(hole["bytes"])) for hole in holes
            )
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = error
    if problem is not None:
        what = f"it cannot be read: {type(problem).__name__}: {problem}"
        if fail_on_corruption:
            raise CorruptLog(path, 0, 0, what, f"Restore it from a backup, or {SKIP_HINT}")
        logger.warning("%s: %s; tombstones are read as messages", path, what)
    return []
