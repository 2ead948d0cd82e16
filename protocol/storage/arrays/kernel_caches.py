"""Where compiled kernels are kept. Importing this needs no Numba."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "FLINTMQ_KERNEL_CACHE"
CLONE = Path(__file__).resolve().parents[3]
"""Root of the package; only that of a clone has a pyproject.toml."""


def cache_folders() -> list[Path]:
    """Return the folders whose subfolders may have compiled kernels, in the order of preference: the one in
    ``FLINTMQ_KERNEL_CACHE``, else one in the user's XDG cache and one beside this module.

    In a clone the one beside this module comes first. In an environment it would be left behind by an installer, which
    does not know it, or vanish with the environment."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return [Path(chosen)]
    xdg = os.environ.get("XDG_CACHE_HOME")
    user = Path(xdg) if xdg else Path("~/.cache").expanduser()
    folders = [user / "flintmq" / "kernels", Path(__file__).parent / "__kernelcache__"]
    return folders[::-1] if (CLONE / "pyproject.toml").is_file() else folders
