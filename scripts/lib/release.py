"""Builds a release: sdist and wheel of ``flintmq`` and of ``flintmq-broker``, checked, and tried in new environments.

    python scripts/lib/release.py [--dry-run] [--home URL] [--output DIR] [--python PYTHON]…

It uses only the standard library; its tools get an environment of their own. It uploads nothing: the release workflow
does. Exit code 0: everything is well; 1: something is wrong; 2: the release was refused before anything was built.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from lib.interpreters import NoInterpreter, interpreters  # noqa: E402

TRIAL = ROOT / "scripts" / "lib" / "release_trial.py"
CONSTRAINTS = ROOT / "constraints.txt"
BROKER = Path("distributions") / "flintmq-broker"
TOOLS = ("build==1.6.1", "twine==7.0.0", "cyclonedx-python-lib[json-validation]==11.12.0")
EXIT_WRONG, EXIT_REFUSED = 1, 2
VENDOR = Path("client") / "console" / "static" / "vendor"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
"""A link or image of Markdown with a relative target: ``!``, text, path, anchor."""
PAGES = {
    "Documentation": "/blob/v{version}/README.md",
    "Source": "",
    "Changelog": "/blob/v{version}/CHANGELOG.md",
    "Issues": "/issues",
    "Security": "/blob/v{version}/SECURITY.md",
}
"""Addresses for the metadata, after that of the repository."""
VALIDATION = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(str(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()) or "") or 0)
"""


class ReleaseRefused(Exception):
    """Error: the clone is not ready for a release."""


class CheckFailed(Exception):
    """Error: a file of the release is wrong, or a trial failed."""


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


def run(command: Sequence[str | Path], *, cwd: Path, stdin: str | None = None) -> str:
    """Run a command outside of this clone's environment; return what it printed. Raises ``CheckFailed``."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment |= {"PIP_CONSTRAINT": str(CONSTRAINTS), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, input=stdin, text=True, stdout=-1, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        raise CheckFailed(f"exit {done.returncode} of {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


# ---- is it a release? ----


def obstacles(version: str) -> list[str]:
    """Return why this clone is not the release ``version``: tag, changes, changelog."""
    found = []
    git = ["git", "-C", str(ROOT)]
    tags = subprocess.run([*git, "tag", "--points-at", "HEAD"], capture_output=True, text=True, check=True).stdout
    if f"v{version}" not in tags.split():
        found.append(f"the commit has no tag v{version}, the version in pyproject.toml; it has {tags.split()}")
    if subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout:
        found.append("the clone has changes that are not committed")
    newest = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if not newest or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", newest[1]):
        found.append(f"CHANGELOG.md does not begin with `## {version} (DATE)`, but with {newest and newest[1]!r}")
    return found


def checked_version() -> str:
    """Return the version. Raises ``ReleaseRefused`` if the two distributions do not agree about it."""
    version = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    broker = tomllib.loads((ROOT / BROKER / "pyproject.toml").read_text())["project"]
    wanted = {"version": version, "dependencies": [f"flintmq[broker,replication]=={version}"]}
    if found := {name: broker[name] for name in wanted if broker[name] != wanted[name]}:
        raise ReleaseRefused(f"{BROKER}/pyproject.toml has {found}; pyproject.toml has the version {version}")
    return version


# ---- the files: the copy with public links, the list of included software, and what must be inside ----


def copy_clone(root: Path, target: Path) -> None:
    """Copy the files of a clone that Git tracks, or would track, as they are now."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (root / name).is_file():  # not the links of `.pkg/flintmq`
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def make_public(clone: Path, home: str, version: str) -> None:
    """Give the metadata the addresses under ``home``, and make the links of its README absolute, as an index needs."""
    home = home.rstrip("/")
    project = clone / "pyproject.toml"
    urls = "".join(f'{name} = "{home}{page.format(version=version)}"\n' for name, page in PAGES.items())
    head, table, tail = project.read_text(encoding="utf-8").partition("[project.optional-dependencies]\n")
    project.write_text(f"{head}[project.urls]\n{urls}\n{table}{tail}", encoding="utf-8")
    readme = clone / "README.md"
    readme.write_text(absolute_links(readme.read_text(encoding="utf-8"), home, version), encoding="utf-8")


def absolute_links(text: str, home: str, version: str) -> str:
    """Return Markdown whose relative links lead to the files of the tag in the repository ``home``, images to their
    bytes."""

    def absolute(found: re.Match[str]) -> str:
        mark, words, path, anchor = found.groups(default="")
        words = LINK.sub(absolute, words)  # an image may be the text of a link
        return f"{mark}[{words}]({home}/{'raw' if mark else 'blob'}/v{version}/{path}{anchor})"

    return LINK.sub(absolute, text)


def sbom(clone: Path, version: str) -> str:
    """Return the list of the software of others that the wheel includes, as CycloneDX in JSON."""
    licence = tomllib.loads((clone / "pyproject.toml").read_text())["project"]["license"]
    packages: dict[str, dict[str, Any]] = {}
    for name, entry in sorted(tomllib.loads((clone / VENDOR / "vendor.toml").read_text()).items()):
        purl = f"pkg:npm/{entry['package']}@{entry['version']}"
        package = packages.setdefault(
            purl,
            {
                "type": "library",
                "bom-ref": purl,
                "name": entry["package"],
                "version": entry["version"],
                "licenses": [{"license": {"id": entry["licence"]}}],
                "purl": purl,
                "components": [],
            },
        )
        digest = base64.b64decode(entry["integrity"].removeprefix("sha384-")).hex()
        path = ("flintmq" / VENDOR / name).as_posix()
        package["components"].append(
            {"type": "file", "bom-ref": path, "name": path, "hashes": [{"alg": "SHA-384", "content": digest}]}
        )
    own = f"pkg:pypi/flintmq@{version}"
    described = {"type": "library", "bom-ref": own, "name": "flintmq", "version": version, "purl": own}
    described["licenses"] = [{"expression": licence}]  # type: ignore[assignment] # a list among texts
    content: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": described},
        "components": list(packages.values()),
        "dependencies": [{"ref": own, "dependsOn": sorted(packages)}],
    }
    # The same content has the same number, so that a build can be repeated.
    content["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True)).urn
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def embed(wheel: Path, name: str, content: bytes) -> None:
    """Add a file to the ``.dist-info`` of a wheel, and to its RECORD."""
    with zipfile.ZipFile(wheel) as old:
        members = [(info, old.read(info)) for info in old.infolist()]
    (record,) = (info for info, _ in members if info.filename.endswith(".dist-info/RECORD"))
    path = record.filename.removesuffix("RECORD") + name
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerow((path, f"sha256={digest}", len(content)))
    scratch = wheel.with_suffix(".new")
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as new:
        for info, data in members:
            if info is record:
                added = zipfile.ZipInfo(path, record.date_time)
                added.external_attr, added.compress_type = record.external_attr, record.compress_type
                new.writestr(added, content)
                data = rows.getvalue().encode() + data
            new.writestr(info, data)
    scratch.replace(wheel)


def flaws(folder: Path, version: str) -> list[str]:
    """Return what is wrong with the files of a release in ``folder``: missing or surplus members."""
    info = f"flintmq-{version}.dist-info"
    source = f"flintmq-{version}"
    with zipfile.ZipFile(folder / f"flintmq-{version}-py3-none-any.whl") as wheel:
        inside = set(wheel.namelist())
    with tarfile.open(folder / f"{source}.tar.gz") as archive:
        packed = set(archive.getnames())
    wanted = {
        *(f"flintmq/{name}" for name in ("py.typed", "conf/broker.toml", "conf/compose.yaml")),
        *(f"flintmq/{package}/__init__.pyi" for package in ("broker/store", "client")),
        *(f"{info}/{name}" for name in ("METADATA", "RECORD", "entry_points.txt", "sboms/flintmq.cdx.json")),
        f"{info}/licenses/LICENSE",
        f"{info}/licenses/{VENDOR.as_posix()}/htmx-LICENSE.txt",
    }
    found = [f"the wheel has no {name}" for name in sorted(wanted - inside)]
    surplus = {name for name in inside if re.match(r"flintmq/(tests|scripts|docs|distributions)/|(?!flintmq)", name)}
    found += [f"the wheel has {name}, which is not for users" for name in sorted(surplus)]
    needed = ("tests/conftest.py", "scripts/test", "docs/concepts.md", "CHANGELOG.md", "SECURITY.md", "constraints.txt")
    found += [f"the source archive has no {name}" for name in needed if f"{source}/{name}" not in packed]
    return found


# ---- build and check ----


def make_tools(folder: Path) -> Path:
    """Create the environment of the tools; return its Python."""
    run([sys.executable, "-m", "venv", folder], cwd=folder.parent)
    python = folder / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *TOOLS], cwd=folder)
    return python


def build(tools: Path, folder: Path, output: Path, version: str, home: str | None) -> list[Path]:
    """Build both distributions from a copy of the clone; return the wheels."""
    staged = folder / "flintmq"
    copy_clone(ROOT, staged)
    if home:
        make_public(staged, home, version)
    for project in (staged, staged / BROKER):
        run([tools, "-m", "build", "--outdir", output, project], cwd=folder)
    (wheel,) = output.glob("flintmq-*.whl")
    listed = sbom(staged, version)
    run([tools, "-c", VALIDATION], cwd=folder, stdin=listed)
    embed(wheel, "sboms/flintmq.cdx.json", listed.encode())
    run([tools, "-m", "twine", "check", "--strict", *sorted(output.iterdir())], cwd=folder)
    for flaw in flaws(output, version):
        raise CheckFailed(flaw)
    return [wheel, *output.glob("flintmq_broker-*.whl")]


# ---- trials ----


def try_wheels(python: str, folder: Path, wheels: Sequence[Path], version: str) -> None:
    """Install the client alone in a new environment and try it, then add the broker and try both."""
    run([python, "-m", "venv", folder], cwd=folder.parent)
    inside = folder / "bin" / "python"
    pip = [inside, "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    run([*pip, wheels[0]], cwd=folder)
    run([inside, "-I", TRIAL, "client", version], cwd=folder)
    run([*pip, *wheels], cwd=folder)
    run([inside, "-I", TRIAL, "broker", version], cwd=folder)
    run([inside, "-m", "pip", "check"], cwd=folder)


# ---- the command ----


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/release", description="Build the files of a release and try them.")
    parser.add_argument("--dry-run", action="store_true", help="build although tag or CHANGELOG are not ready")
    parser.add_argument("--home", metavar="URL", help="address of the repository, for links and metadata")
    parser.add_argument("--output", metavar="DIR", type=Path, default=ROOT / "dist", help="new folder for the files")
    parser.add_argument("--python", metavar="PYTHON", action="append", default=[], help="try this one; repeatable")
    return parser.parse_args(arguments)


def release(options: argparse.Namespace) -> None:
    """Build, check and try. Raises ``ReleaseRefused`` or ``CheckFailed``."""
    version = checked_version()
    hindering = obstacles(version)
    if not options.home:
        hindering.append("without --home, the README keeps its relative links, and the metadata has no addresses")
    if hindering and not options.dry_run:
        raise ReleaseRefused("; ".join(hindering) + ". --dry-run builds all the same")
    for obstacle in hindering:
        say(f"note: {obstacle}")
    output = options.output.resolve()
    if output.exists() and any(output.iterdir()):
        raise ReleaseRefused(f"{output} is not empty: move it away, or choose another folder with --output")
    try:
        found = interpreters(options.python, needs="venv, ensurepip")
    except NoInterpreter as error:
        raise ReleaseRefused(str(error)) from None
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="flintmq-release-") as name:
        folder = Path(name)
        wheels = build(make_tools(folder / "tools"), folder, output, version, options.home)
        for path in sorted(output.iterdir()):
            say(f"built {path.name}, {path.stat().st_size:,} bytes")
        for number, python in found.items():
            environment = folder / f"trial-{number}"
            try_wheels(python, environment, wheels, version)
            shutil.rmtree(environment)
            say(f"works with Python {number}")
    say(f"version {version} is in {output}" + (" (dry run)" if options.dry_run else ""))


def main(arguments: Sequence[str]) -> int:
    try:
        release(parsed(arguments))
    except ReleaseRefused as error:
        say(f"refused: {error}")
        return EXIT_REFUSED
    except CheckFailed as error:
        say(f"failed: {error}")
        return EXIT_WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
