"""Private folders for files that are created once for each user; no other user can put a program into them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


def cache_parents(environment: Mapping[str, str]) -> list[Path]:
    """Return the candidate folders for scripts: the user's cache folder, then a temporary one as a fallback."""
    parents = []
    configured = environment.get("XDG_CACHE_HOME", "")
    if Path(configured).is_absolute():
        parents.append(Path(configured) / "flintmq")
    elif Path(home := environment.get("HOME", "")).is_absolute():
        parents.append(Path(home) / ".cache" / "flintmq")
    return [*parents, Path(tempfile.gettempdir()) / f"flintmq-{os.geteuid()}"]


def private_folder(path: Path) -> None:
    """Create a folder, or check that no other user can put a program into an existing one. Raises ``OSError``."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(0, f"{path} belongs to another user")
    if status.st_mode & 0o022:
        path.chmod(0o700)
