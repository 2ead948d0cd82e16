"""Errors of the flights example. Each message says what to do next."""

from __future__ import annotations

from flintmq.client import ConfigurationError, FlintError, InvalidArgument


class InvalidFlights(InvalidArgument):
    """Error: the CSV file is missing or has no flights. The message names the file and the line or column."""


class FlightsUnavailable(ConfigurationError):
    """Error: no CSV file was named, and the package that contains one is not installed."""


class InvalidFolder(InvalidArgument):
    """Error: a folder cannot be used for the results. Nothing in it was changed."""


class QueryFailed(FlintError):
    """Error: a streaming query failed. The message says which one, why, and how to continue."""


class ResultsDiffer(FlintError):
    """Error: the results differ from the CSV; ``differences`` describes each difference."""

    def __init__(self, message: str, differences: list[str]) -> None:
        super().__init__(message)
        self.differences = differences
