"""Checks the software that Spark needs before Spark starts, so that users see a message and not a Java stack trace."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from .errors import SparkUnavailable

PYSPARK_MIN = (4, 2)
"""The first PySpark whose streaming sources in Python can limit what a micro-batch reads."""
LIBRARIES_MIN = {"pyarrow": (18,), "pandas": (2, 2), "numpy": (2,), "numba": (0, 63)}
"""Libraries that PySpark and the sources need."""

INSTALL_HINT = 'Install `pip install "flintmq[spark]"`'


def check_pyspark() -> str:
    """Return PySpark's version. Raises ``SparkUnavailable`` if it or a required library is missing or too old."""
    try:
        import pyspark
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "pyspark"
        what = "is not installed" if missing else f"cannot be imported ({error})"
        raise SparkUnavailable(f"FlintMQ's Spark sources need PySpark, which {what}. {INSTALL_HINT}") from error
    version = str(getattr(pyspark, "__version__", "of an unknown version"))
    if _numbers(version) < PYSPARK_MIN:
        raise SparkUnavailable(
            f"FlintMQ's Spark sources need pyspark {_text(PYSPARK_MIN)} or newer, and this Python has {version} "
            f"({Path(pyspark.__file__ or '?').parent}). {INSTALL_HINT}"
        )
    for library, oldest in LIBRARIES_MIN.items():
        try:
            found = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError as error:
            raise SparkUnavailable(
                f"FlintMQ's Spark sources need {library}, which is not installed. {INSTALL_HINT}"
            ) from error
        if _numbers(found) < oldest:
            raise SparkUnavailable(
                f"FlintMQ's Spark sources need {library} {_text(oldest)} or newer, and this Python has {found}. "
                f"{INSTALL_HINT}"
            )
    return version


def check_spark_home(pyspark_version: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ``SparkUnavailable`` if SPARK_HOME makes PySpark start the jars of another version of Spark.

    The two speak a private protocol that changes with every version; its failures do not name the cause.
    """
    home = environment.get("SPARK_HOME")
    if not home:
        return
    advice = (
        f"Unset SPARK_HOME to use the Spark {pyspark_version} that PySpark contains, or set it to one of that version"
    )
    jars = sorted(Path(home, "jars").glob("spark-core_*.jar"))
    if not jars:
        raise SparkUnavailable(f"SPARK_HOME={home} is not a Spark folder: it has no jars/spark-core_*.jar. {advice}")
    found = jars[0].stem.rpartition("-")[2]
    if _numbers(found)[:2] != _numbers(pyspark_version)[:2]:
        raise SparkUnavailable(
            f"SPARK_HOME={home} is Spark {found}, and this Python has pyspark {pyspark_version}. {advice}"
        )


def check_commands(environment: Mapping[str, str] = os.environ) -> None:
    """Raise ``SparkUnavailable`` if PATH lacks a command that Spark itself calls.

    ``bash`` runs its launcher. Spark calls ``chmod`` for every folder that it creates; without it a query fails
    halfway. Without ``rm`` its temporary folders remain, and each logs a stack trace.
    """
    path = environment.get("PATH", "")
    missing = [command for command in ("bash", "chmod", "rm") if shutil.which(command, path=path) is None]
    if missing and os.name == "posix":
        raise SparkUnavailable(
            f"Spark calls {' and '.join(missing)}, which PATH does not have (PATH={path!r}). Install what is missing, "
            "or add its folder to PATH, most often /bin or /usr/bin"
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Return (4, 3, 0) for ``4.3.0.dev1``, and () for text that is not a version, which is older than any."""
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in leading[0].split(".")) if leading else ()


def _text(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)
