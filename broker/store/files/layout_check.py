"""What stands where a store has its files and folders, if it is neither: a folder in a file's place, a link that leads
nowhere because a disk is not mounted."""

from __future__ import annotations

import errno
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

_FOLDERS = (
    "commitlog", "consumequeue", "index", "config", "flintmq", "flintmq/aside", "flintmq/new", "flintmq/quarantine",
    "flintmq/timers",
)  # fmt: skip
_TABLES = (
    "config/topics.json", "config/consumerOffset.json", "config/subscriptionGroup.json", "config/delayOffset.json",
    "flintmq/state.json", "flintmq/prepared.json", "flintmq/users.json", "flintmq/quarantine/index.json",
    "flintmq/clock.json",
)  # fmt: skip
_FILES = ("lock", "abort", "checkpoint", "config/topics.json.journal", *_TABLES, *(f"{name}.bak" for name in _TABLES))
_LOG_NAME = re.compile(r"\d{20}\Z", re.ASCII)


def strange_places(store: Path) -> Iterator[tuple[Path, str]]:
    """(path, what is wrong with it) of each place that needs a file, or a folder, and has something else.

    Files of ConsumeQueues and index are not looked at: they can be made anew.
    """
    log = store / "commitlog"
    folders = [store / name for name in _FOLDERS]
    files = [store / name for name in _FILES]
    if log.is_dir():
        files += sorted(path for path in log.iterdir() if _LOG_NAME.match(path.name))
    for paths, is_right, wanted in ((folders, stat.S_ISDIR, "folder"), (files, stat.S_ISREG, "file")):
        for path in paths:
            if found := _instead(path, is_right):
                yield path, f"it is {found}, where a {wanted} belongs"


def _instead(path: Path, is_right: Callable[[int], bool]) -> str:
    """What stands at ``path`` that is not right; empty where it is, or where nothing stands."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a link that leads nowhere" if path.is_symlink() else ""
    except NotADirectoryError:
        return ""  # the folder above it is said to be none
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return "a link that leads to itself"
    if is_right(mode):
        return ""
    return "a folder" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "neither a file nor a folder"
