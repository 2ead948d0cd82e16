"""Finds the Python interpreters of the machine that FlintMQ supports, by the standard library alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PYTHON_MIN = (3, 11)
PROBE_SECONDS_MAX = 60


class NoInterpreter(Exception):
    """Error: FlintMQ does not support a Python that the user named."""


def interpreters(wanted: Sequence[str] = (), *, needs: str = "sys") -> dict[str, str]:
    """Return the path of one CPython for each version, such as ``3.13``, from the oldest to the newest.

    ``wanted``: names or paths; none: those on PATH, then those that pyenv has installed. ``needs``: modules that it
    must have, such as ``venv, ensurepip``. Raises ``NoInterpreter`` if a wanted one does not fit.
    """
    found: dict[tuple[int, int], str] = {}
    for name in wanted or [*_on_path(), *_of_pyenv()]:
        path = shutil.which(name)
        version = path and _version(path, needs)
        if path and version and version >= PYTHON_MIN:
            found.setdefault(version, path)
        elif wanted:
            oldest = ".".join(map(str, PYTHON_MIN))
            raise NoInterpreter(f"{name} is not a Python that FlintMQ supports: CPython {oldest} or newer with {needs}")
    return {f"{major}.{minor}": path for (major, minor), path in sorted(found.items())}


def _on_path() -> list[str]:
    """Return every name such as ``python3.13`` on PATH, and ``python3``. A name may be a shim that does not run."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    names = {path.name for folder in folders for path in folder.glob("python3.*")}
    return [*sorted(name for name in names if re.fullmatch(r"python3\.\d+", name)), "python3"]


def _of_pyenv() -> list[str]:
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return [str(path) for path in sorted(home.glob("versions/*/bin/python3"))]


def _version(path: str, needs: str) -> tuple[int, int] | None:
    """Return the version of a CPython; None: it does not run, lacks a module, or is another implementation."""
    probe = f"import sys, {needs}; print(sys.implementation.name, *sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-I", "-c", probe], capture_output=True, text=True, timeout=PROBE_SECONDS_MAX)
    except (OSError, subprocess.TimeoutExpired):
        return None
    implementation, *numbers = done.stdout.split() or [""]
    return (int(numbers[0]), int(numbers[1])) if done.returncode == 0 and implementation == "cpython" else None
