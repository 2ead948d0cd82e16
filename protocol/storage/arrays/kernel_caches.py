"""Where compiled kernels are kept. Importing this needs no Numba."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "FLINTMQ_KERNEL_CACHE"


def cache_folders() -> list[Path]:
    """Return the folders whose subfolders may have compiled kernels, in the order of preference: the one in
    ``FLINTMQ_KERNEL_CACHE``, else one beside this module and one in the XDG cache."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return [Path(chosen)]
    xdg = os.environ.get("XDG_CACHE_HOME")
    user = Path(xdg) if xdg else Path("~/.cache").expanduser()
    return [Path(__file__).parent / "__kernelcache__", user / "flintmq" / "kernels"]
