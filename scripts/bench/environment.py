"""Temporary Python environments for clients of other brokers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .measure import Skipped

INSTALL_SECONDS_MAX = 180.0


def install(folder: Path, *requirements: str) -> Path:
    """Create an environment with ``requirements`` (arguments of pip) in ``folder``; return its Python. Raises
    ``Skipped`` if that fails."""
    environment = folder / "environment"
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    what = " ".join(requirements)
    for command in ([sys.executable, "-m", "venv", str(environment)], [*pip, *requirements]):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, env=clean_environment()
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Skipped(f"{what} could not be installed: {error}") from None
        if done.returncode:
            raise Skipped(f"{what} could not be installed; is there a network? {done.stderr.strip()[-300:]}")
    return python


def clean_environment() -> dict[str, str]:
    """Return the environment variables without those that point Python to this checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
