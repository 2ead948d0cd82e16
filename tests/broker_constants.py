"""Constants that a test changes in the process of a broker, such as an interval that would be long for a test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module


def set_constants(arguments: Sequence[str]) -> list[str]:
    """Set each constant that is given like a setting, as ``--set MODULE:NAME=value``, before the broker starts; return
    the other arguments of ``flintmq-broker``."""
    others: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, _, value = (assignment := next(rest, "")).partition("=") if argument == "--set" else ("", "", "")
        module, is_constant, constant = name.partition(":")
        if is_constant:
            found = import_module(f"flintmq.broker.{module}")
            assert constant in vars(found), name
            setattr(found, constant, json.loads(value))
        elif argument == "--set":
            others += [argument, assignment]
        else:
            others.append(argument)
    return others
