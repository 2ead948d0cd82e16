"""The installed package: its version, and the files for operators that it contains."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner

import flintmq
from flintmq.broker.app.daemon import main
from flintmq.broker.tools.operator_files import EXAMPLES

ROOT = Path(__file__).parents[2]
ROOMS = ("broker", "client", "protocol", "testing")
"""Folders with the packages; `conf` has only files for operators."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_that_of_the_project() -> None:
    assert flintmq.__version__ == PROJECT["project"]["version"]


def test_a_clone_that_is_not_installed_knows_its_version(tmp_path: Path) -> None:
    (tmp_path / "flintmq").mkdir()
    for name in ("__init__.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "flintmq")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import flintmq; print(flintmq.__version__)"
    # -S: without site-packages, and so without the installed package
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == PROJECT["project"]["version"]


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="'versoin'"):
        flintmq.versoin  # noqa: B018


def test_the_package_holds_the_files_for_operators() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["flintmq.conf"]
    packed = {path.name for pattern in patterns for path in (ROOT / "conf").glob(pattern)}
    assert packed == set(EXAMPLES.values())


def test_they_are_written_into_a_folder_and_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "flintmq"
    done = CliRunner().invoke(main, ["conf", str(folder)])
    assert done.exit_code == 0, done.output
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: (ROOT / "conf" / name).read_bytes() for name in EXAMPLES.values()
    }
    (folder / "alerts.yml").write_text("mine")
    (folder / "broker.toml").unlink()
    again = CliRunner().invoke(main, ["conf", str(folder)])
    assert again.exit_code == 2
    assert re.search(r"already exists: choose another folder", again.output)
    assert (folder / "alerts.yml").read_text() == "mine"
    assert not (folder / "broker.toml").exists()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_printed(name: str) -> None:
    done = CliRunner().invoke(main, ["example", name])
    assert done.exit_code == 0, done.output
    assert done.stdout_bytes == (ROOT / "conf" / EXAMPLES[name]).read_bytes()
    assert "conf/" not in done.stdout  # a folder of the clone, which an installation from a wheel does not have


def test_an_unknown_example_is_refused_with_the_known_ones() -> None:
    done = CliRunner().invoke(main, ["example", "kibana"])
    assert done.exit_code == 2
    assert "'kibana' is not one of" in done.stderr
    assert all(name in done.stderr for name in EXAMPLES)


def test_the_help_names_every_example() -> None:
    assert {*EXAMPLES} <= set(re.findall(r"[a-z]+", CliRunner().invoke(main, ["example", "--help"]).output))


def test_extras_are_for_users_and_groups_for_developers() -> None:
    extras, groups = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]
    assert not extras.keys() & groups.keys()
    named = set(re.findall(r"extras: (.*?)\)", (ROOT / "README.md").read_text(), re.DOTALL)[0].split(", "))
    assert {name.strip("`") for name in named} == extras.keys()
    assert f"flintmq[{','.join(sorted(extras.keys() - {'all', 'celery', 'spark'}))}]" in extras["all"]


def test_the_scripts_set_up_extras_and_groups_that_exist() -> None:
    known = {*PROJECT["project"]["optional-dependencies"], *PROJECT["dependency-groups"]}
    texts = [path.read_text() for path in (ROOT / "scripts").rglob("*") if path.is_file() and not path.suffix]
    lines = [line for text in texts for line in re.findall(r"^ *set_up_environment ([a-z ]+)", text, re.MULTILINE)]
    assert len(lines) > 5
    assert set(" ".join(lines).split()) <= known | {"all"}


def test_the_source_archive_has_every_folder_and_document() -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    tops = {name.split("/")[0] for name in files} - {".ci", ".dockerignore", ".gitignore", ".pkg", "MANIFEST.in"}
    by_itself = {*(name.split(".")[1] for name in PROJECT["tool"]["setuptools"]["packages"] if "." in name)}
    by_itself |= {"__init__.py", "py.typed", "pyproject.toml", "README.md", "LICENSE"}
    listed = set((ROOT / "MANIFEST.in").read_text().split())
    assert tops - by_itself <= listed


def test_pytest_finds_the_plug_in() -> None:
    (found,) = entry_points(group="pytest11", name="flintmq")
    assert found.value == "flintmq.testing.plugin"


def test_the_wheel_has_every_package_that_the_clone_has() -> None:
    initials = [path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("__init__.py")]
    there = {"flintmq", "flintmq.conf", *(".".join(["flintmq", *path.parent.parts]) for path in initials)}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == there
