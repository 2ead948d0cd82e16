"""Builds a release: sdist and wheel of ``flintmq`` and of ``flintmq-broker``, checked, and tried in new environments.

    python scripts/lib/release.py [--dry-run] [--home URL] [--output DIR] [--python PYTHON]…

It uses only the standard library; its tools get an environment of their own. It uploads nothing: the release workflow
does. Exit code 0: everything is well; 1: something is wrong; 2: the release was refused before anything was built.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from lib import release_files  # noqa: E402
from lib.interpreters import NoInterpreter, interpreters  # noqa: E402

TRIAL = ROOT / "scripts" / "lib" / "release_trial.py"
CONSTRAINTS = ROOT / "constraints.txt"
BROKER = Path("distributions") / "flintmq-broker"
TOOLS = ("build==1.6.1", "twine==7.0.0", "cyclonedx-python-lib[json-validation]==11.12.0")
EXIT_WRONG, EXIT_REFUSED = 1, 2
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
    """Print a line of progress."""
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
    release_files.copy_clone(ROOT, staged)
    if home:
        release_files.make_public(staged, home, version)
    for project in (staged, staged / BROKER):
        run([tools, "-m", "build", "--outdir", output, project], cwd=folder)
    (wheel,) = output.glob("flintmq-*.whl")
    sbom = release_files.sbom(staged, version)
    run([tools, "-c", VALIDATION], cwd=folder, stdin=sbom)
    release_files.embed(wheel, "sboms/flintmq.cdx.json", sbom.encode())
    run([tools, "-m", "twine", "check", "--strict", *sorted(output.iterdir())], cwd=folder)
    for flaw in release_files.flaws(output, version):
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
    """Return the options."""
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
    """Run the command; return the exit code."""
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
