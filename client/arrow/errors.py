"""Errors of reading and sending messages as Arrow batches, in addition to the client's. Each says what to do."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from ...protocol.errors import ConfigurationError, FlintError
from ...protocol.storage.reader.errors import CorruptLog as CorruptLog
from ...protocol.storage.reader.errors import DataLoss as DataLoss
from ..errors import InvalidArgument


class InvalidOption(InvalidArgument):
    """An option of a source, a sink or a read of a store is unknown, malformed or contradicts another; the message
    names it."""


class ArrowUnavailable(ConfigurationError):
    """PyArrow, NumPy or Numba is missing; the message says what to install."""


class RowsNotSent(FlintError):
    """The broker did not acknowledge some rows of a ``send_arrow``; the rows after their batch were not sent.

    ``errors``: each failure, by the number of the row; ``acknowledged``: the number of rows that are stored. A row that
    failed with a timeout or a lost connection may still be stored: only its acknowledgement is missing.
    """

    def __init__(self, errors: Mapping[int, FlintError], acknowledged: int) -> None:
        row, first = min(errors.items())
        super().__init__(
            f"{len(errors)} rows were not acknowledged, {acknowledged} others were; the first, row {row}: "
            f"{type(first).__name__}: {first}"
        )
        self.errors = errors
        self.acknowledged = acknowledged

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errors, self.acknowledged)


# ---- Checks for the libraries of the extra, so that users see a message that says what to install.


_OF_THE_EXTRA = ("pyarrow", "numpy", "numba")


def check_arrow(what: str, *libraries: str) -> None:
    """Raise ``ArrowUnavailable`` if a library of the extra, or one of ``libraries``, is not installed."""
    for library in (*_OF_THE_EXTRA, *libraries):
        if importlib.util.find_spec(library) is None:
            also = "" if library in _OF_THE_EXTRA else f" {library}"
            raise ArrowUnavailable(f"{what} needs {library}: pip install 'flintmq[arrow]'{also}")
