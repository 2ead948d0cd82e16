"""``flintmq-broker replica init`` and ``replica force``: what a person decides about a replica set."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ...protocol.errors import ConfigurationError
from ..config import Settings
from ..replication.core.configuration import Proposal, ProposalOutcome, SetConfig
from ..replication.member.replica_member import registry_of
from ..replication.registry.interface import Registry, RegistryError, RegistryView
from ..store.files.file_system import Files, make_durable_folder
from ..store.files.store_lock import StoreLock
from ..store.message_store import OWN_FOLDER
from ..store.tables.store_state import ReplicaRecord, ReplicaState

T = TypeVar("T")

MEMBERS_MAX = 5


def begin_set(settings: Settings, addresses: Mapping[str, str], min_in_sync: int | None) -> SetConfig:
    """Write a new set into its registry, and make the stopped store of the settings its first complete member.

    ``addresses``: HOST:PORT by member; ``min_in_sync``: None means the majority. Raises ``ConfigurationError``, before
    anything is written, if the set exists already, the store belongs to one, or the members do not fit.
    """
    replication = settings.replication
    if replication.member not in addresses:
        raise ConfigurationError(
            f"replication.member = {replication.member!r} is not among the members {list(addresses)}"
        )
    if not 1 <= len(addresses) <= MEMBERS_MAX:
        raise ConfigurationError(f"a replica set has 1 to {MEMBERS_MAX} members, not {len(addresses)}")
    least = min_in_sync if min_in_sync is not None else len(addresses) // 2 + 1
    if not 1 <= least <= len(addresses):
        raise ConfigurationError(f"min_in_sync must be from 1 to {len(addresses)}, the number of members, not {least}")
    path = Path(settings.store.path).expanduser()
    files = Files()
    make_durable_folder(files, path)
    with StoreLock(files, path).held():
        state = _state(files, path)
        if state.record.cluster_id:
            raise ConfigurationError(
                f"{path} belongs to the set {state.record.cluster_id} already; `flintmq replica add` adds members to it"
            )
        config = SetConfig(str(uuid.uuid4()), 0, "", frozenset({replication.member}), frozenset(addresses), least)
        _ask(_create(registry_of(settings), config, addresses, replication.set))
        # After the registry: a store that belongs to a set which does not exist could not be used again.
        make_durable_folder(files, path / OWN_FOLDER)
        state.save(ReplicaRecord(config.cluster_id, replication.member, (), True))
    return config


def _ask(question: Coroutine[Any, Any, T]) -> T:
    """Return the registry's answer. Raises ``ConfigurationError`` if the registry cannot give one."""
    try:
        return asyncio.run(question)
    except RegistryError as error:
        raise ConfigurationError(
            f"the registry of the replica set, replication.etcd, gives no answer: {error}. Nothing was changed"
        ) from error


async def _create(registry: Registry, config: SetConfig, addresses: Mapping[str, str], name: str) -> None:
    view = await registry.read()
    if view.state.config is not None:
        raise ConfigurationError(f"replica set {name!r} exists already, with the members {sorted(view.addresses)}")
    await _propose(registry, view, config, addresses)


async def _propose(registry: Registry, view: RegistryView, config: SetConfig, addresses: Mapping[str, str]) -> None:
    # Also compared with the lease: a member may have taken it since the read.
    answer = await registry.propose(Proposal(1, config, view.state.version, True), addresses)
    if answer.outcome is not ProposalOutcome.DONE:
        raise ConfigurationError(
            f"the registry did not take the configuration: {answer.reason or 'another change came first'}. Look at the "
            "set with `flintmq replica status`, then decide again"
        )


def _state(files: Files, path: Path) -> ReplicaState:
    state = ReplicaState(files, path / OWN_FOLDER / "replication.json")
    state.load()
    return state


def read_set(settings: Settings) -> RegistryView:
    """Return what the registry has. Raises ``ConfigurationError`` if it has no such set, or gives no answer."""
    view = _ask(registry_of(settings).read())
    if view.state.config is None:
        raise ConfigurationError(
            f"the registry has no replica set {settings.replication.set!r}: `replica init` begins one"
        )
    return view


def force_leader(settings: Settings) -> SetConfig:
    """Let the member of the settings lead, although it may lack acknowledged messages; its broker must be stopped.

    The member becomes the only one in sync. Raises ``ConfigurationError`` if a member leads, or if the store never was
    in the set.
    """
    replication = settings.replication
    path = Path(settings.store.path).expanduser()
    files = Files()
    with StoreLock(files, path).held():
        state = _state(files, path)
        view = read_set(settings)
        config = view.state.config
        assert config is not None
        if view.state.holder is not None:
            raise ConfigurationError(f"{view.state.holder} leads the set at the moment; use `flintmq replica switch`")
        if state.record.cluster_id != config.cluster_id or replication.member not in config.members:
            raise ConfigurationError(f"{path} is not the store of a member of this set")
        forced = config.led_by(replication.member, {replication.member})
        _ask(_propose(registry_of(settings), view, forced, view.addresses))
        # After the registry: if it refuses, the store must not claim that it lacks nothing.
        state.save(replace(state.record, complete=True))
    return forced
