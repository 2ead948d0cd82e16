"""Finds the log that a user names: by a store's folder, its commitlog folder, or a ``file:`` URI of either."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ....protocol.names import is_system_topic, name_fault
from ....protocol.storage.reader.errors import OnDamage, raise_damage
from ....protocol.storage.reader.log_files import LogFiles, open_log
from ....protocol.store_files import OFFSET_NAME
from ..errors import InvalidOption

_COMMITLOG = "commitlog"
_SHOWN = 10


def find_log(path: str, on_damage: OnDamage = raise_damage) -> LogFiles:
    """Return the files of the store at ``path``. Raises ``InvalidOption`` if there is none.

    ``on_damage`` is called for files that are missing, cut short or misnamed; the others are used if it returns.
    """
    folder, store = _locate(path)
    return open_log(folder, store, on_damage=on_damage)


def _locate(path: str) -> tuple[Path, Path | None]:
    """Return the commitlog folder, and the store's folder if it is in one."""
    given = Path(_local(path))
    if (given / _COMMITLOG).is_dir():
        return given / _COMMITLOG, given
    if given.is_dir() and any(OFFSET_NAME.match(file.name) for file in given.iterdir()):
        return given, given.parent if given.name == _COMMITLOG else None
    if not given.exists():
        what = "it does not exist"
    elif not given.is_dir():
        what = "it is a file"
    else:
        what = f"it is a folder that contains {_some_names(given)}"
    raise InvalidOption(
        f"{path!r} is not a store: {what}. Pass the folder of a store (it contains the folder `{_COMMITLOG}`), or a "
        "folder of CommitLog files (their names are physical offsets of 20 digits); with Spark, one that the driver "
        "and every executor see"
    )


def _local(path: str) -> str:
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", path):
        return path
    uri = urlsplit(path)
    if uri.scheme != "file" or uri.netloc not in ("", "localhost"):
        raise InvalidOption(
            f"{path!r} is not a path: a store is read from a file system that is mounted here (with Spark: on the "
            "driver and on every executor); pass its path, or file:///its/path. Copy a store from elsewhere there first"
        )
    return unquote(uri.path)


def _some_names(folder: Path, shown: int = 4) -> str:
    names = sorted(file.name for file in folder.iterdir())
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "") or "nothing"


def check_topics(names: Iterable[str], log: LogFiles) -> None:
    """Raise ``InvalidOption`` for a topic that the store does not know; without a store nothing is checked."""
    known = log.queues().topics()
    if known is None or log.store is None:
        return
    known |= _configured(log.store / "config" / "topics.json")
    for name in names:
        if name not in known:
            if fault := name_fault("topic", name):
                raise InvalidOption(f"topic {name!r} is not in {log.store}; its name {fault}")
            own = [topic for topic in known if not is_system_topic(topic)]
            own.sort(key=lambda topic: (topic.startswith("%"), topic))  # retry topics and dead letters come last
            near = difflib.get_close_matches(name, own, 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            more = f" and {len(own) - _SHOWN} more" if len(own) > _SHOWN else ""
            raise InvalidOption(
                f"topic {name!r} is not in {log.store}{meant}; it has {', '.join(own[:_SHOWN]) or 'none'}{more}. "
                "With Spark, option('subscribePattern', …) reads the rest of a deleted topic"
            )


def _configured(path: Path) -> set[str]:
    """Return the topics in the table, including those that never had a message."""
    try:
        return set(json.loads(path.read_bytes())["topicConfigTable"])
    except (OSError, ValueError, KeyError, TypeError):  # the queues list every topic that has had a message
        return set()
