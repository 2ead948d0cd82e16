"""Check that a store's paths are of the right kind.

Finds a folder where a file belongs, or a link that is dangling because a disk is not mounted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from ....protocol.store_files import OFFSET_NAME

_FOLDERS = tuple(
    ("commitlog consumequeue index config flintmq flintmq/aside flintmq/new flintmq/quarantine flintmq/timers").split()
)
_TABLES = tuple(
    (
        "config/topics.json config/consumerOffset.json config/subscriptionGroup.json "
        "config/delayOffset.json flintmq/state.json flintmq/prepared.json flintmq/pop.json "
        "flintmq/users.json flintmq/quarantine/index.json flintmq/clock.json"
    ).split()
)
_FILES = (
    *("lock", "abort", "checkpoint", "flintmq/following.json", *_TABLES),
    *("config/topics.json.journal", "config/consumerOffset.json.journal", "flintmq/pop.json.journal"),
    *(f"{name}.bak" for name in _TABLES),
)


def strange_places(store: Path) -> Iterator[tuple[Path, str]]:
    """Yield (path, problem) for each path that must be a file or a folder and is something else.

    A folder may be a link, to another disk; a file must not be one, because it could lead to any file of the machine,
    which would then be overwritten. The files of ConsumeQueues and index are not checked: recovery can rebuild them.
    """
    log = store / "commitlog"
    folders = [store / name for name in _FOLDERS]
    files = [store / name for name in _FILES]
    if log.is_dir():
        files += sorted(path for path in log.iterdir() if OFFSET_NAME.match(path.name))
    files += [path for path in _links_of_tables(store) if path not in files]
    for paths, is_right, wanted in ((folders, stat.S_ISDIR, "folder"), (files, stat.S_ISREG, "file")):
        for path in paths:
            if found := _instead(path, is_right):
                yield path, f"it is {found}, where a {wanted} belongs"


def _links_of_tables(store: Path) -> Iterator[Path]:
    """Yield the links in the place of tables and of what belongs to one, such as a table that is being written; not
    those in folders that a start empties."""
    paths = sorted((store / "config").glob("*.json*"))
    for folder, folders, names in os.walk(store / "flintmq"):
        folders[:] = sorted(name for name in folders if name not in ("aside", "new"))
        paths += [Path(folder, name) for name in sorted(names)]
    yield from (path for path in paths if path.is_symlink())


def _instead(path: Path, is_right: Callable[[int], bool]) -> str:
    """Return a description of a wrong object at ``path``; empty if it is right or if nothing is there."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a link that leads nowhere" if path.is_symlink() else ""
    except NotADirectoryError:
        return ""  # its parent is reported instead
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return "a link that leads to itself"
    if is_right(mode):
        return "a link" if stat.S_ISREG(mode) and path.is_symlink() else ""
    return "a folder" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "neither a file nor a folder"
