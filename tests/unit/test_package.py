"""The installed package: its version, and the files for operators that it contains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner

import flintmq
from flintmq.broker.app.daemon import main
from flintmq.broker.tools.commands import EXAMPLES
from tests.document_reader import read_blocks

ROOT = Path(__file__).parents[2]
ROOMS = ("broker", "client", "conf", "protocol", "testing")
"""Folders with the packages."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_that_of_the_project() -> None:
    assert flintmq.__version__ == PROJECT["project"]["version"]


def test_a_clone_that_is_not_installed_knows_its_version(tmp_path: Path) -> None:
    shutil.copytree(ROOT / ".pkg", tmp_path / ".pkg", symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    program = f"import sys; sys.path.insert(0, {str(tmp_path / '.pkg')!r}); import flintmq; print(flintmq.__version__)"
    # -S: without site-packages, and so without the installed package
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == PROJECT["project"]["version"]


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="'versoin'"):
        flintmq.versoin  # noqa: B018


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the source archive of this clone; building them leaves nothing in it."""
    folder = tmp_path_factory.mktemp("built")
    before = sorted(ROOT.iterdir())
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True)
    assert sorted(ROOT.iterdir()) == before
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> set[str]:
    """Return the names of the files in the wheel."""
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if name.startswith("flintmq/")}


def tracked() -> list[str]:
    """Return the paths of the files that Git tracks, or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_wheel_has_each_file_of_the_packages_but_documents(wheel: set[str]) -> None:
    own = {name for name in tracked() if name.split("/")[0] in ROOMS and (ROOT / name).exists()}
    code = {f"flintmq/{name}" for name in own if not name.endswith(".md")}
    assert wheel == code | {"flintmq/__init__.py", "flintmq/py.typed"}
    assert {f"flintmq/conf/{name}" for name in EXAMPLES.values()} <= wheel


def test_type_checkers_find_the_package_where_the_scripts_install_it(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = next(block.text for block in read_blocks(ROOT / "README.md") if "import Consumer" in block.text)
    (tmp_path / "first.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "first.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "Success: no issues found in 1 source file\n"


def test_a_folder_of_the_same_name_as_the_package_is_not_imported_instead(tmp_path: Path) -> None:
    (tmp_path / "flintmq").symlink_to(ROOT)  # a clone with its usual name, and a program in the folder above it
    program = "import flintmq; print(flintmq.__file__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == flintmq.__file__


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


def test_they_are_not_written_through_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for name in EXAMPLES.values():
        (tmp_path / "etc" / name).symlink_to(tmp_path / "elsewhere")
    done = CliRunner().invoke(main, ["conf", str(tmp_path / "etc")])
    assert done.exit_code == 2
    assert "already exists: choose another folder" in done.output
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
    done = CliRunner().invoke(main, ["conf", str(tmp_path / "folder")])
    assert done.exit_code == 2
    assert str(tmp_path / "folder") in done.output
    assert not (tmp_path / "elsewhere").exists()


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


def test_the_source_archive_has_every_folder_and_document(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    files = {name for name in tracked() if (ROOT / name).is_file()}
    assert {name for name in files - packed if not name.startswith((".ci/", ".dockerignore"))} == set()


def test_pytest_finds_the_plug_in() -> None:
    (found,) = entry_points(group="pytest11", name="flintmq")
    assert found.value == "flintmq.testing.plugin"
