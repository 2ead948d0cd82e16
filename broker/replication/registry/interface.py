"""Interface of a registry to the driver of a member."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, Protocol

from ..core.configuration import Proposal, ProposalOutcome, RegistryState, SetConfig


@dataclass(frozen=True, slots=True)
class RegistryView:
    """The registry at one moment: the core's part of it, and the addresses, which the core does not know."""

    state: RegistryState
    addresses: Mapping[str, str]
    """Address of each member, ``host:port``."""


@dataclass(frozen=True, slots=True)
class ProposalAnswer:
    """Answer to a proposal."""

    outcome: ProposalOutcome
    version: int = 0
    """Version of the configuration if the proposal is done, else 0."""
    reason: str = ""
    """Why the outcome is unknown."""


class LeaseAnswer(Enum):
    """Answer to a request for the lease."""

    HELD = "held"
    REFUSED = "refused"
    """The configuration does not name this member and epoch."""
    UNKNOWN = "unknown"
    """No answer came. The lease may have been taken or renewed; ask again."""


class Registry(Protocol):
    """The configuration and the lease of one replica set. The caller makes at most one call of ``hold_lease`` or
    ``release_lease`` at a time; the other methods may run concurrently."""

    async def read(self) -> RegistryView:
        """Return configuration and holder of the lease as of one moment after the call (linearizable). Raise
        ``RegistryError`` if no endpoint answers."""

    async def propose(self, proposal: Proposal, addresses: Mapping[str, str]) -> ProposalAnswer:
        """Replace the configuration by compare-and-set. ``addresses`` has that of every member; others are dropped.
        A change is sent once. ``RegistryError``: it is not applied, and never will be."""

    async def hold_lease(self, member: str, epoch: int) -> LeaseAnswer:
        """Take or renew the lease, if the configuration names this member and epoch; the lease of an earlier epoch is
        replaced. If it is held, it is so from the moment of the call on, for the registry's
        ``lease_s``. ``RegistryError``: a person must act, or the registry holds what cannot be read."""

    async def release_lease(self) -> None:
        """Give the lease back, if one is held; without an answer it ends by itself after its time. Never raises."""

    def watch(self) -> AsyncGenerator[RegistryView, None]:
        """Yield the present view, then a view after each change; several changes may give one view. It continues
        through every failure; close it with ``aclose``."""


# ---- Errors of a registry. Each says what a person can do.


class RegistryError(Exception):
    """The registry did not do what was asked. A change that raises it was not applied, and never will be."""


class EndpointError(RegistryError):
    """One endpoint cannot serve; another one may."""


class RegistryUnreachable(EndpointError):
    """No connection could be opened, or it ended or fell silent before the response."""


class RegistryUnavailable(EndpointError):
    """The registry answers that it cannot serve now: it has no leader, for example, or no room."""


class NotARegistry(EndpointError):
    """The endpoint answers, but not as etcd does."""


class UnsafeRegistry(EndpointError):
    """The endpoint runs a version of etcd that may lose or contradict what it has answered."""


class RegistryCredentialsRejected(RegistryError):
    """The registry does not accept this broker's user, password or certificate."""


class RegistryPermissionDenied(RegistryError):
    """The registry knows this broker's user, but does not let it use the keys of the set."""


class RegistryRefused(RegistryError):
    """The registry refused the request for another reason."""


class MalformedRegistry(RegistryError):
    """The registry holds a configuration that this version cannot use."""


class ConfigTooLong(RegistryError):
    """The configuration is longer than the registry may hold."""


class OutcomeUnknown(Exception):
    """No response came to a change that was sent. It may be applied now, later, or never."""


# ---- The configuration as JSON, as the registry stores it:
#
# {"format": 1, "cluster_id": "…", "epoch": 7, "primary": "a", "in_sync": ["a", "b"], "members": {"a":
# "host:10911", "b": "…"}, "min_in_sync": 2}

FORMAT = 1
CONFIG_BYTES_MAX = 64 * 1024
"""Maximum length of the JSON; etcd takes 1.5 MB, sets of five members need less than 1 KB."""
_FIELDS = {"format", "cluster_id", "epoch", "primary", "in_sync", "members", "min_in_sync"}


def encode_config(config: SetConfig, addresses: Mapping[str, str]) -> bytes:
    """Return the JSON of the configuration. Raise ``ValueError`` if a member has no address."""
    missing = config.members - addresses.keys()
    if missing:
        raise ValueError(f"the members {', '.join(sorted(missing))} have no address")
    fields = {
        "format": FORMAT,
        "cluster_id": config.cluster_id,
        "epoch": config.epoch,
        "primary": config.primary,
        "in_sync": sorted(config.in_sync),
        "members": {member: addresses[member] for member in sorted(config.members)},
        "min_in_sync": config.min_in_sync,
    }
    encoded = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    if len(encoded) > CONFIG_BYTES_MAX:
        raise ConfigTooLong(f"the configuration has {len(encoded):,} bytes, the maximum is {CONFIG_BYTES_MAX:,}")
    return encoded


def decode_config(encoded: bytes) -> tuple[SetConfig, dict[str, str]]:
    """Return the configuration and the members' addresses. Raise ``MalformedRegistry`` unless every field is valid: a
    wrong guess could make two members lead."""
    try:
        fields = json.loads(encoded)
    except (ValueError, RecursionError) as error:
        raise MalformedRegistry(f"the configuration is not JSON ({error})") from error
    if not isinstance(fields, dict) or not _is_number(fields.get("format"), 1):
        _malformed("it is not an object with the field format")
    # Before the fields, which may be others in a newer format: the message must name the true reason.
    if fields["format"] > FORMAT:
        raise MalformedRegistry(
            f"the configuration has format {fields['format']}, this version reads format {FORMAT}: update this broker"
        )
    if fields.keys() != _FIELDS:
        _malformed(f"missing or unknown fields: {', '.join(sorted(fields.keys() ^ _FIELDS))}")
    _check(fields)
    config = SetConfig(
        cluster_id=fields["cluster_id"],
        epoch=fields["epoch"],
        primary=fields["primary"],
        in_sync=frozenset(fields["in_sync"]),
        members=frozenset(fields["members"]),
        min_in_sync=fields["min_in_sync"],
    )
    return config, fields["members"]


def _check(fields: dict[str, Any]) -> None:
    members, in_sync = fields["members"], fields["in_sync"]
    if not isinstance(members, dict) or not members or not all(map(_is_name, [*members, *members.values()])):
        _malformed("members must map each member to its address")
    if not isinstance(in_sync, list) or not in_sync or not all(_is_name(each) and each in members for each in in_sync):
        _malformed("in_sync must list one or more of the members")
    if not _is_name(fields["cluster_id"]):
        _malformed("cluster_id must be a string that is not empty")
    if not _is_number(fields["epoch"], 0):
        _malformed("epoch must be a whole number from 0")
    # Only a set that no member has led yet has no primary.
    if fields["primary"] not in ([*members, ""] if fields["epoch"] == 0 else [*members]):
        _malformed("primary must be one of the members")
    if not _is_number(fields["min_in_sync"], 1) or fields["min_in_sync"] > len(members):
        _malformed("min_in_sync must be a number from 1 to that of the members")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_number(value: object, minimum: int) -> bool:
    # In Python, JSON's true is an ``int``.
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _malformed(reason: str) -> NoReturn:
    raise MalformedRegistry(f"the configuration in the registry is malformed: {reason}. A person must repair it")
