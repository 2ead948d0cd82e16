"""``scripts/docs`` builds the whole site without a warning, a dead link, or anything of another host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".venv-docs" / "installed.txt"


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / "docs"), "--output", str(tmp_path / "docs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    if not INSTALLED.exists():
        pytest.skip(f"Zensical could not be installed: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stderr
    site = tmp_path / "docs" / "site"
    for page in ("index", "runbook/FlintMQDown/index", "reference/settings/index", "tutorials/money/index"):
        assert "<article" in (site / f"{page}.html").read_text(encoding="utf-8")
    for _, place in [line[2:].removesuffix(")").split("](") for line in _listed(site / "llms.txt")]:
        assert (site / place).read_text(encoding="utf-8").startswith("# ")


def _listed(path: Path) -> list[str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    assert len(lines) > 50
    return lines
