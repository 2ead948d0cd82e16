"""Files of a release: links for an index page, the list of included software, and the workflow."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path

from flintmq.scripts.lib import release

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOME = "https://git.example/flintmq"


def test_no_relative_link_of_the_readme_is_left() -> None:
    text = release.absolute_links((ROOT / "README.md").read_text(), HOME, "1.2")
    targets = re.findall(r"\]\(([^)]+)\)|(?:href|src)=\"([^\"]+)", text)
    assert len(targets) > 20
    assert all("".join(target).startswith((HOME, "#")) for target in targets)


def test_every_file_of_others_is_listed_with_its_hash() -> None:
    listed = json.loads(release.sbom(ROOT, "1.2"))
    assert listed["metadata"]["component"]["purl"] == "pkg:pypi/flintmq@1.2"
    files = [each for package in listed["components"] for each in package["components"]]
    vendor = ROOT / release.VENDOR
    assert {Path(each["name"]).name for each in files} == {path.name for path in vendor.glob("*.js")}
    for each in files:
        content = (ROOT / Path(each["name"]).relative_to("flintmq")).read_bytes()
        assert each["hashes"] == [{"alg": "SHA-384", "content": hashlib.sha384(content).hexdigest()}]
    assert release.sbom(ROOT, "1.2") == release.sbom(ROOT, "1.2")


def test_the_licence_names_those_of_the_included_files() -> None:
    packages = json.loads(release.sbom(ROOT, "1.2"))["components"]
    assert {each["license"]["id"] for one in packages for each in one["licenses"]} < set(PROJECT["license"].split())


def test_the_workflow_tries_every_python_that_the_metadata_names() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert re.findall(r"^ {12}(3\.\d+)$", text, re.MULTILINE) == named
    for script in re.findall(r"(?:\./)?(scripts/[\w/.]+)", text):
        assert (ROOT / script).is_file(), script
