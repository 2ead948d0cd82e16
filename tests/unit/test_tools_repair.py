"""``flintmq-broker repair``: it reports what it would do, does it, and finds nothing to do the second time."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from flintmq.broker.tools.commands import repair, verify
from flintmq.broker.tools.findings import KINDS
from flintmq.broker.tools.repair import ACTIONS
from tests.store_tools import SMALL, Sent, assert_only_these_are_left, open_store, overwrite, plain, put, tree

SLOTS = ["--index-slots", str(SMALL.index_slots)]


@pytest.fixture
def sent(tmp_path: Path) -> list[Sent]:
    """Return the messages of the stopped store at ``tmp_path / "store"``, which has three log files."""
    store = open_store(tmp_path / "store")
    sent = [
        each for number in range(24) for each in put(store, "orders", number % 2, plain(1, size=400_000, first=number))
    ]
    store.close()
    return sent


def run(command: click.Command, store: Path, *options: str) -> Result:
    return CliRunner().invoke(command, [str(store), *SLOTS, *options])


def test_every_kind_of_finding_has_an_action() -> None:
    assert set(ACTIONS) == set(KINDS)


def test_a_sound_store_is_left_as_it_is(tmp_path: Path, sent: list[Sent]) -> None:
    before = tree(tmp_path / "store")
    for options in ([], ["--apply"]):
        result = run(repair, tmp_path / "store", *options)
        assert (result.exit_code, result.output.splitlines()[-1]) == (0, "sound     nothing is wrong")
    assert tree(tmp_path / "store") == before


def test_a_dry_run_lists_the_changes_of_apply(tmp_path: Path, sent: list[Sent]) -> None:
    """The damage is in a file that a start would not read."""
    path = tmp_path / "store"
    lost = sent[2]
    overwrite(path / "commitlog" / f"{0:020d}", lost.physical_offset + 200, b"!!")
    shutil.rmtree(path / "consumequeue" / "orders" / "1")
    before = tree(path)
    result = run(repair, path)
    assert result.exit_code == 1
    assert "bodies whose checksum is wrong: 1" in result.output
    assert "repair: contained: the bytes go to flintmq/quarantine" in result.output
    assert "repair: rebuilt from the log" in result.output
    assert result.output.splitlines()[-1] == "dry run   nothing was changed; --apply does it"
    assert tree(path) == before

    result = run(repair, path, "--apply")
    assert result.exit_code == 0, result.output
    assert f"at physical offset {lost.physical_offset:,} (a body with a wrong checksum)" in result.output
    assert "1 message is lost (orders queue 0: 1)" in result.output
    assert result.output.splitlines()[-1] == "sound     nothing is wrong any longer"
    after = tree(path)
    result = run(repair, path, "--apply")
    assert (result.exit_code, tree(path)) == (0, after)
    store = open_store(path)
    assert_only_these_are_left(store, [each for each in sent if each is not lost], [lost])
    store.close()

    result = run(verify, path)
    assert result.exit_code == 0, result.output
    assert "quarantined:" in result.output
    assert "1 message is lost (orders queue 0: 1)" in result.output


def test_damage_that_needs_a_person_is_left_and_reported(tmp_path: Path, sent: list[Sent]) -> None:
    path = tmp_path / "store"
    (path / "commitlog" / "notes").write_text("mine")
    result = run(repair, path, "--apply")
    assert result.exit_code == 1
    assert "repair: left to you: move them away" in result.output
    assert (path / "commitlog" / "notes").read_text() == "mine"
    (path / "commitlog" / f"{0:020d}").unlink()
    before = tree(path)
    result = run(repair, path, "--apply")
    assert result.exit_code == 2
    assert tree(path) == before
