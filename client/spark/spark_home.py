"""A SPARK_HOME made of links, from which Python workers start sooner.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` at the front of every Python process's path. Python compiles modules
from an archive again on every import, which takes 0.8 s, in several processes of a session and in one more for each
streaming query. PySpark from a package index has the same modules, already compiled, where the driver found them. The
folder created here has everything of its SPARK_HOME except that archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import site
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .cache_folders import cache_parents, private_folder

logger = logging.getLogger(__name__)

_INTERPRETERS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
ARCHIVE = Path("python", "lib", "pyspark.zip")
_LINKED = ("bin", "conf", "data", "examples", "jars", "kubernetes", "licenses", "resource-managers", "sbin", "yarn")


def home_without_archive(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder, creating it if necessary, or None if Spark has to use its own home.

    It is None if SPARK_HOME or a Python for the workers is set, if PySpark has no archive or a worker could not import
    without the archive, or if no folder accepts links.
    """
    import pyspark

    package = Path(pyspark.__file__).resolve().parent
    if environment.get("SPARK_HOME") or not (package / ARCHIVE).exists() or not (package / "jars").is_dir():
        return None
    if any(environment.get(name, sys.executable) != sys.executable for name in _INTERPRETERS):
        return None
    if package.parent not in _paths_of_a_new_process(environment):
        return None
    name = f"spark-{pyspark.__version__}-{hashlib.sha256(os.fsencode(package)).hexdigest()[:16]}"
    for parent in cache_parents(environment):
        try:
            private_folder(parent)
            private_folder(parent / name)
            for each in _LINKED:
                if (package / each).exists():
                    _link(parent / name / each, package / each)
            return parent / name
        except OSError as error:
            logger.debug("no SPARK_HOME of links in %s: %s", parent, error)
    return None


def _paths_of_a_new_process(environment: Mapping[str, str]) -> set[Path]:
    """Return the folders in which a new process of this interpreter looks for modules."""
    places = [*site.getsitepackages(), site.getusersitepackages()]
    places += [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    return {Path(place).resolve() for place in places}


def _link(link: Path, target: Path) -> None:
    """Create a link, or check its target if it exists: two processes may do so at once. Raises ``OSError``."""
    with contextlib.suppress(OSError):
        if link.readlink() == target:
            return
    temporary = Path(tempfile.mkdtemp(dir=link.parent))
    try:
        (temporary / "link").symlink_to(target)
        (temporary / "link").replace(link)
    finally:
        with contextlib.suppress(FileNotFoundError):
            (temporary / "link").unlink()
        temporary.rmdir()
