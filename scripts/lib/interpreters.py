"""Finds the Python interpreters of the machine that FlintMQ supports, by the standard library alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

PYTHON_MIN = (3, 11)
PROBE_SECONDS_MAX = 60


class NoInterpreter(Exception):
    """Error: FlintMQ does not support a Python that the user named."""


def interpreters(wanted: Sequence[str] = (), *, needs: str = "sys") -> dict[str, str]:
    """Return the path of one CPython for each release, such as ``3.11.2``, from the oldest to the newest.

    ``wanted``: names or paths; none: those on PATH, then those that pyenv has installed, the first of each minor
    version; and of the oldest minor version also the oldest release, whose standard library has the least. ``needs``:
    modules that it must have, such as ``venv, ensurepip``. Raises ``NoInterpreter`` if a wanted one does not fit.
    """
    found: dict[tuple[int, int, int], str] = {}
    for name in wanted or [*_on_path(), *_of_pyenv()]:
        path = shutil.which(name)
        release = path and _release(path, needs)
        if path and release and release >= PYTHON_MIN:
            found.setdefault(release, path)
        elif wanted:
            oldest = ".".join(map(str, PYTHON_MIN))
            raise NoInterpreter(f"{name} is not a Python that FlintMQ supports: CPython {oldest} or newer with {needs}")
    first = {release[:2]: release for release in reversed(found)}
    chosen = found if wanted else {*first.values(), *_oldest(found)}
    return {".".join(map(str, release)): found[release] for release in sorted(chosen)}


def _oldest(releases: Collection[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the oldest release if it is one of ``PYTHON_MIN``, else nothing."""
    return [release for release in sorted(releases)[:1] if release[:2] == PYTHON_MIN]


def _on_path() -> list[str]:
    """Return each ``python3.13`` and the like in the folders of PATH, and each ``python3``. It may be a shim that does
    not run."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    named = [path for folder in folders for path in sorted(folder.glob("python3.*"))]
    numbered = [str(path) for path in named if re.fullmatch(r"python3\.\d+", path.name)]
    return [*numbered, *(str(folder / "python3") for folder in folders)]


def _of_pyenv() -> list[str]:
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return [str(path) for path in sorted(home.glob("versions/*/bin/python3"))]


def _release(path: str, needs: str) -> tuple[int, int, int] | None:
    """Return the release of a CPython; None: it does not run, lacks a module, or is another implementation."""
    probe = f"import sys, {needs}; print(sys.implementation.name, *sys.version_info[:3])"
    try:
        done = subprocess.run([path, "-I", "-c", probe], capture_output=True, text=True, timeout=PROBE_SECONDS_MAX)
    except (OSError, subprocess.TimeoutExpired):
        return None
    implementation, *numbers = done.stdout.split() or [""]
    if done.returncode != 0 or implementation != "cpython":
        return None
    major, minor, patch = map(int, numbers)
    return major, minor, patch
