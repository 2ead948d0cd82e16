"""Checks for PyArrow and NumPy, so that users see a message that says what to install."""

from __future__ import annotations

import importlib.util

from .errors import ArrowUnavailable


def check_arrow(what: str, *libraries: str) -> None:
    """Raise ``ArrowUnavailable`` if a library is not installed that ``what`` needs: PyArrow, NumPy, or a given one."""
    for library in ("pyarrow", "numpy", *libraries):
        if importlib.util.find_spec(library) is None:
            also = "" if library in ("pyarrow", "numpy") else f" {library}"
            raise ArrowUnavailable(f"{what} needs {library}: pip install 'flintmq[arrow]'{also}")
