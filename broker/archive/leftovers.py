"""What the archive no longer needs: old versions of the manifest, objects that nobody names, tables of days past.

Every function only says which objects are to be deleted, by name and age; ages are by the object store's own times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from ...protocol.storage.archive.fragment import parse_name
from ...protocol.storage.archive.manifest import GROUPS, KEY_RUNS, LATEST, ArchiveManifest, version_name
from ...protocol.storage.archive.objects import Listed
from ...protocol.storage.archive.tables import parse_table_object

HOUR_MS = 3_600_000
READER_MS = HOUR_MS
"""Time for which a reader may hold a version of the manifest, and read what it names."""
ORPHAN_MS = 24 * HOUR_MS
"""Age from which an object that the manifest does not name is nobody's: no writer is that slow."""


def old_versions(listed: Iterable[Listed], newest: ArchiveManifest, now_ms: int) -> Iterator[str]:
    """Yield the versions of the manifest that no reader can still need.

    A version counts until the next one is written. The newest and the one before it always stay.
    """
    written_ms = {each.name: each.modified_ms for each in listed if each.name != LATEST}
    for version in range(newest.version - 1):
        name, following = version_name(version), version_name(version + 1)
        if name in written_ms and written_ms.get(following, now_ms) < now_ms - READER_MS:
            yield name


def orphans(listed: Iterable[Listed], named: Set[str], now_ms: int) -> Iterator[str]:
    """Yield the fragments, groups and runs that the manifest does not name and that nobody can be about to name.

    Objects that are none of the format's stay: somebody else put them there.
    """
    for each in listed:
        is_ours = parse_name(each.name) is not None or each.name.startswith((GROUPS, KEY_RUNS))
        if is_ours and each.name not in named and each.modified_ms < now_ms - ORPHAN_MS:
            yield each.name


def old_tables(listed: Iterable[Listed], now_ms: int) -> Iterator[str]:
    """Yield the tables that a restore can do without: of those older than an hour, all but the last of each hour; of
    those older than a day, all but the last of each day."""
    kept: dict[tuple[str, int, int], tuple[int, str]] = {}
    for each in listed:
        parsed = parse_table_object(each.name)
        age_ms = now_ms - each.modified_ms
        if parsed is None or age_ms <= HOUR_MS:
            continue
        start, name = parsed
        period_ms = HOUR_MS if age_ms <= 24 * HOUR_MS else 24 * HOUR_MS
        key = name, period_ms, each.modified_ms // period_ms
        held = kept.get(key)
        if held is None or held[0] < start:
            kept[key] = start, each.name
            if held is not None:
                yield held[1]
        else:
            yield each.name
