"""Errors of the pipeline. Each says what to do."""

from __future__ import annotations

from ...protocol.errors import ConfigurationError, FlintError
from ..errors import InvalidArgument


class InvalidFlights(InvalidArgument):
    """The CSV file of flights is not there, or is none; the message names the file, and the line or column."""


class FlightsUnavailable(ConfigurationError):
    """No CSV file was given, and the package that has one is not installed; the message says what to install."""


class InvalidFolder(InvalidArgument):
    """A folder cannot be what it was given for: the results' or the checkpoints'. Nothing was changed in it."""


class PipelineFailed(FlintError):
    """A query of the pipeline ended with an error; the message says which, why, and how to go on."""


class ResultsDiffer(FlintError):
    """What the pipeline made is not what the CSV says; ``differences`` are in words, all of them."""

    def __init__(self, message: str, differences: list[str]) -> None:
        super().__init__(message)
        self.differences = differences
