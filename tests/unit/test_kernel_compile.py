"""Kernels are compiled at import for exactly their types; a call with other types is an error and compiles nothing."""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flintmq.broker import kernels
from flintmq.broker.kernels import deliver, dispatch, gather, index, produce, search, sequences, text
from flintmq.protocol.storage.arrays import crc32, jit, kernel_caches
from flintmq.protocol.storage.arrays.kernel_caches import CACHE_VARIABLE

PACKAGE = Path(kernels.__file__).parent
pytestmark = pytest.mark.skipif(jit.INTERPRETED, reason="nothing is compiled")

KERNELS = {
    f"{module.__name__.rpartition('.')[2]}.{name.lstrip('_')}": value
    for module in (crc32, text, produce, dispatch, index, gather, sequences, deliver, search)
    for name, value in vars(module).items()
    # Functions that are only inlined into kernels may be compiled for further types when a kernel is compiled.
    if not getattr(value, "_can_compile", True) and value.__module__ == module.__name__
}


def test_every_kernel_is_known_to_these_tests() -> None:
    expected = {
        "crc32": {"crc32"},
        "text": {"text_status", "java_hash"},
        "produce": {"common_status", "count_batch", "produce"},
        "dispatch": {"scan", "locate", "queue_hash", "dispatch"},
        "index": {"put", "check", "select", "match"},
        "gather": {"choose", "plan_reads", "gather", "finish"},
        "sequences": {"stored_runs"},
        "deliver": {"find_targets", "deliver"},
        "search": {"find_record", "next_record"},
    }
    assert {f"{module}.{name}" for module, names in expected.items() for name in names} <= set(KERNELS)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_kernel_has_one_signature_and_runs_without_the_gil(name: str) -> None:
    kernel = KERNELS[name]
    assert len(kernel.nopython_signatures) == 1
    assert kernel.targetoptions["nogil"]


def good_arguments(kernel: Any) -> list[Any]:
    """Return arguments of the right types; the values do not matter because no call gets that far."""
    arguments: list[Any] = []
    for kind in kernel.nopython_signatures[0].args:
        dtype = {"uint8": np.uint8, "int64": np.int64, "int32": np.int32}.get(str(getattr(kind, "dtype", "")))
        arguments.append(0 if dtype is None else np.zeros((2,) * kind.ndim, dtype))
    return arguments


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only copy."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def big_endian(array: np.ndarray) -> np.ndarray:
    """Return the array as it would come out of a file: as big-endian words, even if it consists of bytes."""
    return array.astype(f">i{max(array.itemsize, 2)}")


WRONG: dict[str, Callable[[np.ndarray], Any]] = {
    "read-only": read_only,
    "another type": lambda array: array.astype(np.uint16),
    "signed bytes": lambda array: array.astype(np.int8),
    "floats": lambda array: array.astype(np.float64),
    "another rank": lambda array: np.zeros((2,) * (array.ndim + 1), array.dtype),
    "not contiguous": lambda array: np.zeros((4,) * array.ndim, array.dtype)[(slice(None, None, 2),) * array.ndim],
    "big-endian": big_endian,
    "bytes": lambda array: bytes(16),
    "a list": lambda array: array.tolist(),
    "nothing": lambda array: None,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_an_array_of_another_type_is_an_error_and_compiles_nothing(name: str, wrong: str) -> None:
    kernel = KERNELS[name]
    for place, argument in enumerate(good_arguments(kernel)):
        if not isinstance(argument, np.ndarray):
            continue
        arguments = good_arguments(kernel)
        arguments[place] = WRONG[wrong](argument)
        with pytest.raises(TypeError):
            kernel(*arguments)
    assert len(kernel.nopython_signatures) == 1


def test_warm_goes_through_every_module_of_the_package() -> None:
    own = [name for name in kernels.MODULES if name != kernels.READER_SCAN]
    assert set(own) == {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    warmed = [name for name, seconds in kernels.warm() if seconds >= 0]
    assert warmed == [*own, "scan"]
    for name in own:
        assert importlib.import_module(f"{kernels.__name__}.{name}").__doc__


def test_compiled_code_is_kept_in_a_folder_of_the_users_own_that_is_named_by_the_sources() -> None:
    folder = jit.cache_folder(PACKAGE)
    if folder is None:
        pytest.skip("no folder can be written here")
    assert folder.name == jit._digest(PACKAGE)
    assert not folder.stat().st_mode & 0o022


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o1777])
def test_a_folder_that_others_could_have_filled_is_not_used(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    folder = tmp_path / jit._digest(PACKAGE)
    folder.mkdir()
    folder.chmod(mode)
    assert jit._usable_folder(PACKAGE) is None
    assert f"other users can write to {folder}" in caplog.text
    folder.chmod(0o755)
    assert jit._usable_folder(PACKAGE) == folder


def test_a_folder_of_another_user_or_a_link_to_one_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "linked"))
    (tmp_path / "linked").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "linked" / jit._digest(PACKAGE)).symlink_to(elsewhere)
    assert jit._usable_folder(PACKAGE) is None

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "others"))
    (tmp_path / "others" / jit._digest(PACKAGE)).mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert jit._is_trusted(tmp_path / "others" / jit._digest(PACKAGE), {os.geteuid()}) is False
    if os.getuid() != 0:  # root's files are trusted: an image is built by root and run by another user
        assert jit._usable_folder(PACKAGE) is None


def test_the_cache_is_in_the_environments_folder_and_closed_to_others(tmp_path: Path) -> None:
    parent = tmp_path / "cache"
    script = (
        "from flintmq.protocol.storage.arrays import crc32, jit; print(jit.cache_folder(jit.Path(jit.__file__).parent))"
    )
    environment = {CACHE_VARIABLE: str(parent), "HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=100
    )
    folder = Path(done.stdout.strip())
    assert folder.parent == parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.rglob("*.nbi"))
    assert not done.stderr


def test_an_installation_prefers_the_users_cache_and_a_clone_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    beside = Path(kernel_caches.__file__).parent / "__kernelcache__"
    users = tmp_path / "flintmq" / "kernels"
    assert kernel_caches.cache_folders() == [beside, users]
    monkeypatch.setattr(kernel_caches, "CLONE", tmp_path)  # no pyproject.toml, as in an environment
    assert kernel_caches.cache_folders() == [users, beside]


HITS = """
import sys
sys.path.insert(0, sys.argv[1])
import flintmq
from flintmq.protocol.storage.arrays.crc32 import crc32
import numpy as np
assert flintmq.__file__.startswith(sys.argv[1]), flintmq.__file__
assert crc32(np.frombuffer(bytearray(b"123456789"), np.uint8), 0, 9) == 0xCBF43926
print(sum(crc32.stats.cache_hits.values()))
"""
"""Prints how often the kernel ``crc32`` of the installation in a folder was found in the cache."""


def run_hits(installation: Path, cache: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``HITS``; the editable FlintMQ of this environment must not answer, hence -P and the inserted folder."""
    environment = {**os.environ, CACHE_VARIABLE: str(cache)}
    command = [sys.executable, "-P", "-c", HITS, str(installation)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False, **options)


def installation(folder: Path) -> Path:
    """Return a folder with a copy of what the kernels of ``protocol`` need."""
    root = PACKAGE.parents[1]
    shutil.copytree(root / "protocol", folder / "flintmq" / "protocol", ignore=shutil.ignore_patterns("__*cache__"))
    shutil.copy(root / "__init__.py", folder / "flintmq")
    return folder


def test_two_environments_share_the_compiled_kernels(tmp_path: Path) -> None:
    for name, hits in (("first", "0"), ("second", "1")):
        done = run_hits(installation(tmp_path / name), tmp_path / "cache")
        assert done.stdout.strip() == hits, done.stderr
        assert not done.stderr


def test_kernels_that_cannot_be_saved_are_used_all_the_same(tmp_path: Path) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = run_hits(installation(tmp_path), tmp_path / "cache", preexec_fn=no_room)
    assert done.stdout.strip() == "0", done.stderr
    assert "they are compiled at every start" in done.stderr
    assert done.stderr.count("\n") == 1
