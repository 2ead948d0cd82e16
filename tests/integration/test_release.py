"""``scripts/release --dry-run``: the wheels work in new environments, with the newest Python of the machine. Without
``--python``, as the release workflow runs it, the script tries each, which takes minutes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.long(seconds=220), pytest.mark.timeout(1500)]


def test_a_dry_run_builds_the_files_and_tries_them(tmp_path: Path) -> None:
    output = tmp_path / "dist"
    program, home = str(ROOT / "scripts" / "release"), "https://git.example/flintmq"
    minor, python = newest_python()
    command = [program, "--dry-run", "--home", home, "--output", str(output), "--python", python]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stdout or "Temporary failure in name resolution" in done.stdout:
        pytest.skip("the tools or packages cannot be fetched")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"works with Python 3.{minor}." in done.stdout
    assert sorted(path.suffix for path in output.iterdir()) == [".gz", ".gz", ".whl", ".whl"]
    (wheel,) = output.glob("flintmq-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
    assert "Project-URL: Changelog, https://git.example/flintmq/blob/v" in metadata
    assert "](docs/" not in metadata


def newest_python() -> tuple[int, str]:
    """Return the newest Python on PATH that can make environments, after its minor version."""
    for minor in range(sys.version_info[1] + 10, sys.version_info[1], -1):
        python = shutil.which(f"python3.{minor}")
        probe = [python or "", "-I", "-c", "import venv, ensurepip"]
        if python and subprocess.run(probe, capture_output=True).returncode == 0:
            return minor, python
    return sys.version_info[1], sys.executable
