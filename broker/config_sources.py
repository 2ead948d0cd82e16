"""The sources of the settings, and the messages about invalid ones.

Later sources win: ``conf/broker.toml`` < ``--config FILE`` < environment < ``--set`` < named flags. pydantic checks the
values; an invalid setting raises ``ConfigurationError`` with one line that names the setting, its value, its source and
the valid values.

pydantic-settings is not used: its environment source ignores variables of unknown sections, reads ``FLINTMQ_STORE`` as
JSON, and no source of it remembers for an error message where a value came from.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ..protocol.errors import ConfigurationError
from ..protocol.text_files import decode_text
from .config import CONTRADICTION, FIELDS, Settings, valid_values, value_of

ENVIRONMENT_PREFIX = "FLINTMQ_"
ENVIRONMENT_SEPARATOR = "__"
FIXED = {
    "store.reput_chunk_bytes": "1 MiB",
    "limits.produce_messages_max": "16384",
    "limits.busy_retry_after_ms": "100 ms",
    "limits.sequence_producer_runs_max": "1024",
    "limits.sequence_recovery_bytes": "256 MiB",
}
"""Former settings, and the values that they are fixed to now."""
PACKAGED_FILE = Path(__file__).resolve().parents[1] / "conf" / "broker.toml"

# ---- the sources ----


class _Given(NamedTuple):
    """One value of one source. ``name``: SECTION.NAME; ``source``: its description for messages."""

    name: str
    value: object
    source: str


def load_settings(
    *, config: Path | None, environment: Mapping[str, str], assignments: Iterable[str], flags: Mapping[str, object]
) -> Settings:
    """Return the settings from all sources.

    ``config``: the file of ``--config``; ``environment``: usually ``os.environ``; ``assignments``: the
    ``SECTION.NAME=VALUE`` of ``--set``; ``flags``: values of the named flags by setting, e.g.
    ``{"server.listen": "…"}``. Raises ``ConfigurationError``.
    """
    return _checked(
        [
            *(_in_file(PACKAGED_FILE) if PACKAGED_FILE.is_file() else ()),
            *(_in_file(config) if config is not None else ()),
            *_in_environment(environment),
            *map(_assigned, assignments),
            *(_Given(name, value, _flag(name)) for name, value in flags.items()),
        ]
    )


def changed_settings(settings: Settings, changes: Mapping[str, object]) -> Settings:
    """Return ``settings`` with the values of ``changes`` (by SECTION.NAME), checked as at the start.

    Raises ``ConfigurationError`` for an unknown setting, an invalid value, or values that contradict each other.
    """
    return _checked(
        [
            # All of them, because rules between settings are checked, too.
            *(_Given(name, value_of(settings, name), "current value") for name in FIELDS),
            *(_Given(name, value, "requested") for name, value in changes.items()),
        ]
    )


def _in_file(path: Path) -> Iterator[_Given]:
    try:
        content = tomllib.loads(decode_text(path.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"cannot read the settings file {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"the settings file {path} is not valid TOML: {error}") from None
    for section, values in content.items():
        if not isinstance(values, dict) or (not values and section not in Settings.model_fields):
            yield _Given(section, values, str(path))  # refused because it is not the name of a setting
        else:
            yield from (_Given(f"{section}.{key}", value, str(path)) for key, value in values.items())


def _in_environment(environment: Mapping[str, str]) -> Iterator[_Given]:
    for variable, value in environment.items():
        section, separator, key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition(ENVIRONMENT_SEPARATOR)
        if variable.startswith(ENVIRONMENT_PREFIX) and separator:
            yield _Given(f"{section}.{key}", value, f"the environment variable {variable}")


def _assigned(assignment: str) -> _Given:
    name, separator, value = assignment.partition("=")
    if not separator or "." not in name:
        raise ConfigurationError(f"--set {assignment}: use SECTION.NAME=VALUE, e.g. store.index_slots=5000")
    return _Given(name.strip(), value, "--set")


def _flag(name: str) -> str:
    section, _, key = name.partition(".")
    return f"--{section if key in ('path', 'policy') else key}"


# ---- checks and their messages ----


def _checked(given: Iterable[_Given]) -> Settings:
    """Return the settings with the last value given for each name. Raises ``ConfigurationError``."""
    values: dict[str, dict[str, object]] = {}
    sources: dict[str, str] = {}
    for name, value, source in given:
        if name not in FIELDS:
            raise ConfigurationError(_unknown(name, source))
        section, _, key = name.partition(".")
        values.setdefault(section, {})[key] = value
        sources[name] = source
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        # One at a time, because a message is one line.
        first = error.errors(include_url=False)[0]
        raise ConfigurationError(_refusal(first, values, sources)) from None


def _unknown(name: str, source: str) -> str:
    sections = sorted(Settings.model_fields)
    if name in sections:
        return f"{name} ({source}) is a section, not a setting: use [{name}] with its settings below"
    if name in FIXED:
        return f"{name} ({source}) is no longer a setting: the broker always uses {FIXED[name]}. Remove it"
    key = name.partition(".")[2]
    same_key = [each for each in FIELDS if key and each.partition(".")[2] == key]
    nearest = same_key or difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else f"the sections are {', '.join(sections)}"
    return f"unknown setting {name} ({source}); {hint}"


def _refusal(error: ErrorDetails, values: Mapping[str, Mapping[str, Any]], sources: Mapping[str, str]) -> str:
    """Return pydantic's error as one line: the setting, its value, its source, the rule, other settings that matter."""
    context = error.get("ctx", {})
    if error["type"] == CONTRADICTION:
        name, rule, others = context["name"], context["rule"], context["others"]
    else:
        name, others = ".".join(map(str, error["loc"][:2])), ()
        rule = f"must be {valid_values(name)}"
    section, _, key = name.partition(".")
    value = values[section][key] if name in sources else value_of(Settings(), name)
    source = sources.get(name, "default")
    hint = ", ".join(f"{other} ({sources.get(other, 'default')})" for other in others)
    return f"{name} = {value!r} ({source}): {rule}{f'; see also {hint}' if hint else ''}"
