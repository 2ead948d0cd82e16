"""``scripts/release``: links for an index page, the list of included software, and what makes it refuse."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from flintmq.scripts.lib import release_files

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOME = "https://git.example/flintmq"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/b.md)", f"[a]({HOME}/blob/v1.2/docs/b.md)"),
        ("[a](docs/b.md#c) and [d](e)", f"[a]({HOME}/blob/v1.2/docs/b.md#c) and [d]({HOME}/blob/v1.2/e)"),
        ("![a](docs/b.png)", f"![a]({HOME}/raw/v1.2/docs/b.png)"),
        ("[![a](b.png)](c.md)", f"[![a]({HOME}/raw/v1.2/b.png)]({HOME}/blob/v1.2/c.md)"),
        ("[`[x]`](a)", f"[`[x]`]({HOME}/blob/v1.2/a)"),
        ("[a](https://b.example/c)", "[a](https://b.example/c)"),
        ("[a](#b)", "[a](#b)"),
        ("[a](mailto:b@c.example)", "[a](mailto:b@c.example)"),
    ],
)
def test_relative_links_become_absolute_and_others_stay(text: str, expected: str) -> None:
    assert release_files.absolute_links(text, HOME, "1.2") == expected


def test_no_relative_link_of_the_readme_is_left() -> None:
    text = release_files.absolute_links((ROOT / "README.md").read_text(), HOME, "1.2")
    targets = re.findall(r"\]\(([^)]+)\)|(?:href|src)=\"([^\"]+)", text)
    assert len(targets) > 20
    assert all("".join(target).startswith((HOME, "#")) for target in targets)


def test_the_metadata_gets_addresses_and_stays_valid(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    release_files.make_public(tmp_path, HOME + "/", "1.2")
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    urls = project.pop("urls")
    assert urls["Changelog"] == f"{HOME}/blob/v1.2/CHANGELOG.md"
    assert project == PROJECT


def test_every_file_of_others_is_listed_with_its_hash() -> None:
    listed = json.loads(release_files.sbom(ROOT, "1.2"))
    assert listed["metadata"]["component"]["purl"] == "pkg:pypi/flintmq@1.2"
    files = [each for package in listed["components"] for each in package["components"]]
    vendor = ROOT / release_files.VENDOR
    assert {Path(each["name"]).name for each in files} == {path.name for path in vendor.glob("*.js")}
    for each in files:
        content = (ROOT / Path(each["name"]).relative_to("flintmq")).read_bytes()
        assert each["hashes"] == [{"alg": "SHA-384", "content": hashlib.sha384(content).hexdigest()}]
    assert release_files.sbom(ROOT, "1.2") == release_files.sbom(ROOT, "1.2")


def test_the_licence_names_those_of_the_included_files() -> None:
    packages = json.loads(release_files.sbom(ROOT, "1.2"))["components"]
    assert {each["license"]["id"] for one in packages for each in one["licenses"]} < set(PROJECT["license"].split())


def test_a_file_is_added_to_a_wheel_and_its_record(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/__init__.py", "x = 1\n")
        archive.writestr("a-1.dist-info/RECORD", "a/__init__.py,,\na-1.dist-info/RECORD,,\n")
    release_files.embed(wheel, "sboms/a.json", b"{}")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("a/__init__.py") == b"x = 1\n"
        assert archive.read("a-1.dist-info/sboms/a.json") == b"{}"
        digest = base64.urlsafe_b64encode(hashlib.sha256(b"{}").digest()).rstrip(b"=").decode()
        rows = archive.read("a-1.dist-info/RECORD").decode().splitlines()
    assert f"a-1.dist-info/sboms/a.json,sha256={digest},2" in rows
    assert rows[-1] == "a-1.dist-info/RECORD,,"


def release(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run ``release.py``."""
    command = [sys.executable, str(root / "scripts" / "lib" / "release.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_a_clone_that_is_no_release_is_refused_with_every_reason(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    release_files.copy_clone(ROOT, clone)
    subprocess.run(["git", "init", "--quiet", clone], check=True)
    (clone / "CHANGELOG.md").write_text("# Changes\n\n## 7.0.0 (2026-01-01)\n")
    commit = ["git", "-c", "user.name=x", "-c", "user.email=x@x.example", "commit", "--quiet", "--allow-empty", "-mx"]
    subprocess.run(commit, cwd=clone, check=True)
    done = release("--output", str(tmp_path / "dist"), root=clone)
    assert done.returncode == 2, done.stdout + done.stderr
    version = PROJECT["version"]
    for reason in (f"no tag v{version}", "not committed", "'7.0.0 (2026-01-01)'", "without --home"):
        assert reason in done.stdout
    assert not (tmp_path / "dist").exists()


def test_distributions_of_two_versions_are_refused(tmp_path: Path) -> None:
    release_files.copy_clone(ROOT, tmp_path)
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace(f'version = "{PROJECT["version"]}"', 'version = "9.9.9"', 1))
    done = release("--dry-run", root=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "pyproject.toml has the version 9.9.9" in done.stdout


def test_files_of_an_earlier_release_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    (tmp_path / "flintmq-0.0.1.tar.gz").touch()
    done = release("--dry-run", "--output", str(tmp_path))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "is not empty" in done.stdout


def test_a_python_that_does_not_run_is_refused(tmp_path: Path) -> None:
    done = release("--dry-run", "--output", str(tmp_path / "dist"), "--python", "python-that-is-not-there")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "python-that-is-not-there is not a Python" in done.stdout
    assert not (tmp_path / "dist").exists()


def test_the_workflow_tries_every_python_that_the_metadata_names() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert re.findall(r"^ {12}(3\.\d+)$", text, re.MULTILINE) == named
    for script in re.findall(r"(?:\./)?(scripts/[\w/.]+)", text):
        assert (ROOT / script).is_file(), script
