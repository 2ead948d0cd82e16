"""The place of a compiled kernel in Numba's cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

from numba.core import config


class KernelLocator:
    """Keeps kernels directly in the folder ``CACHE_DIR``, whose name is a digest of the sources of its kernels.

    Numba's own locators also compare path and time of the source file, so each new environment would compile again.
    ``jit.kernel`` has Numba use this one, by its name (``CACHE_LOCATOR_CLASSES``).
    """

    def __init__(self, folder: str, first_line: int) -> None:
        self._folder = folder
        self._first_line = first_line

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> Self:
        """Return the locator of a function's compiled code."""
        return cls(str(config.CACHE_DIR), function.__code__.co_firstlineno)  # type: ignore[attr-defined] # set at run time

    def ensure_cache_path(self) -> None:
        """Create the folder if it is missing."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - Numba's paths are texts

    def get_cache_path(self) -> str:
        """Return the folder."""
        return self._folder

    def get_source_stamp(self) -> str:
        """Return the same for each source: the folder's name stands for it."""
        return ""

    def get_disambiguator(self) -> str:
        """Return what tells functions of one name in one module apart."""
        return str(self._first_line)
