"""Compilation of kernels, and the cache of the compiled code.

Every kernel has an explicit signature: it is compiled once, at import, and a call with another array type is an error
instead of a compilation on the event loop. Numba's cache does not notice a change in another module, so the cache
folder's name contains a digest of every source file that the kernels of a package take constants and functions from.

A process that must not wait for the compiler calls ``only_load`` first: its kernels come from the cache, and those that
are not there run as plain Python until ``take_over`` finds that another process has compiled them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import logging
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numba
from numba import types
from numba.core import config
from numba.core.dispatcher import Dispatcher

from .kernel_caches import CACHE_VARIABLE, cache_folders

# ---- The place of a compiled kernel in Numba's cache.


class KernelLocator:
    """Keeps kernels directly in the folder ``CACHE_DIR``, whose name is a digest of the sources of its kernels.

    Numba's own locators also compare path and time of the source file, so each new environment would compile again.
    ``jit.kernel`` has Numba use this one, by its name (``CACHE_LOCATOR_CLASSES``).
    """

    def __init__(self, folder: str, first_line: int) -> None:
        self._folder = folder
        self._first_line = first_line

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> Self:
        """Return the locator of a function's compiled code."""
        return cls(str(config.CACHE_DIR), function.__code__.co_firstlineno)  # type: ignore[attr-defined] # set at run time

    def ensure_cache_path(self) -> None:
        """Create the folder if it is missing."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - Numba's paths are texts

    def get_cache_path(self) -> str:
        """Return the folder."""
        return self._folder

    def get_source_stamp(self) -> str:
        """Return the same for each source: the folder's name stands for it."""
        return ""

    def get_disambiguator(self) -> str:
        """Return what tells functions of one name in one module apart."""
        return str(self._first_line)


INTERPRETED = bool(config.DISABLE_JIT)  # type: ignore[attr-defined] # Numba sets it at run time
"""Kernels run as plain Python (``NUMBA_DISABLE_JIT=1``)."""

i64 = types.int64
void = types.void
bytes_array = types.Array(types.uint8, 1, "C")
read_only_bytes = types.Array(types.uint8, 1, "C", readonly=True)
"""Bytes that a kernel does not write; it takes writable arrays too."""
i64_array = types.Array(types.int64, 1, "C")
i32_array = types.Array(types.int32, 1, "C")
i64_table = types.Array(types.int64, 2, "C")

log = logging.getLogger(__name__)

_LOCATOR = f"{KernelLocator.__module__}.{KernelLocator.__qualname__}"

F = TypeVar("F", bound=Callable[..., Any])

_only_loads = False
_waiting: list[WaitingKernel] = []
_cache_settings = threading.RLock()
"""Held while Numba's settings name the folder of a kernel: ``take_over`` loads in a thread."""


def _digest(package: Path) -> str:
    """Return a digest of what the compiled kernels in the folder ``package`` depend on."""
    digest = hashlib.sha256(f"{numba.__version__} {sys.version_info[:2]}".encode())
    here = Path(__file__).parent
    for folder in (here.parent, here, package):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _private_folder(path: Path) -> bool:
    """Create ``path`` if it is missing; return whether it is the user's own, closed to others and writable."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return _is_trusted(path, {os.geteuid()}) and os.access(path, os.W_OK)


def _is_trusted(path: Path, owners: Set[int]) -> bool:
    """Return whether ``path`` is a folder of one of these users that no one else can write to. The cache is pickled:
    loading it runs any code in it."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners:
        return False
    if status.st_mode & 0o022:
        log.warning("other users can write to %s: the compiled kernels in it are not used; remove it", path)
        return False
    return True


def _usable_folder(package: Path) -> Path | None:
    """Return the folder for the kernels in ``package``, in one of ``cache_folders()``; None if none is usable. Its name
    is the digest."""
    parents = cache_folders()
    name = _digest(package)
    # Prefer a folder that is already filled, even if it is read-only (a container image run by another user).
    for parent in parents:
        folder = parent / name
        if folder.is_dir() and os.access(folder, os.R_OK) and _is_trusted(folder, {0, os.geteuid()}):
            return folder
    for parent in parents:
        if _private_folder(parent / name):
            return parent / name
    return None


@functools.cache
def cache_folder(package: Path) -> Path | None:
    """Return the folder for the compiled kernels in ``package``; log a warning if none is usable."""
    folder = _usable_folder(package)
    if folder is None:
        log.warning(
            "no folder for compiled kernels is writable: they are compiled at every start; set %s", CACHE_VARIABLE
        )
    return folder


_COMPILE: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy", "_nrt": False}
"""``_nrt``: no reference counts. Kernels allocate nothing, and atomic reference counts of the arrays that they pass to
each other would cost more than the work on a small message."""


def kernel(result: Any, *arguments: Any) -> Callable[[F], F]:
    """Return a decorator that compiles a function for exactly these argument types, to run without the GIL."""

    def decorate(function: F) -> F:
        if INTERPRETED:
            return _with_plain_results(function)
        folder = cache_folder(Path(inspect.getfile(function)).parent)
        signature = result(*arguments)
        if _only_loads:
            waiting = WaitingKernel(function, signature, folder)
            if waiting.load():
                return cast(F, waiting.run)
            _waiting.append(waiting)
            return cast(F, waiting)
        if folder is not None:
            try:
                with _cache_in(folder):
                    return cast(F, numba.njit(signature, cache=True, **_COMPILE)(function))
            except OSError as error:  # the disk is full, or another user's filled cache lacks a kernel
                _cannot_save(folder, str(error))
        return cast(F, numba.njit(signature, **_COMPILE)(function))

    return decorate


@contextlib.contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """Let Numba cache in ``folder``. In a Spark worker, the user's own compiled functions keep their cache."""
    settings: Any = config
    with _cache_settings:
        before = settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES
        settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = str(folder), _LOCATOR
        try:
            yield
        finally:
            settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = before


@functools.cache
def _cannot_save(folder: Path, reason: str) -> None:
    log.warning("compiled kernels cannot be kept in %s (%s): they are compiled at every start", folder, reason)


class WaitingKernel:
    """A kernel that is not in the cache yet: until it is, a call runs it as plain Python."""

    def __init__(self, function: Callable[..., Any], signature: Any, folder: Path | None) -> None:
        self._function = function
        self._signature = signature
        self._folder = folder
        self.run = _with_plain_results(function)
        """The interpreted kernel; once it is loaded, the compiled one."""

    def __call__(self, *arguments: Any) -> Any:
        return self.run(*arguments)

    def load(self) -> bool:
        """Load the compiled kernel from the cache; return False if it is not there."""
        if self._folder is None:
            return False
        with _cache_in(self._folder):
            compiled: Any = numba.njit(cache=True, **_COMPILE)(self._function)
            # Numba itself would compile what it does not find, and here the helpers are plain functions.
            found = compiled._cache.load_overload(self._signature, compiled.targetctx)
        if found is None:
            return False
        compiled.add_overload(found)
        compiled.disable_compile()
        self.run = compiled
        # Who looks the kernel up in its module calls it directly from now on.
        module = vars(sys.modules[self._function.__module__])
        module.update({name: compiled for name, value in [*module.items()] if value is self})
        return True


def only_load(package: Path) -> bool:
    """Let this process compile no kernel, but load those that are in the cache, now or later: see ``take_over``.

    Return False, and change nothing, if no process could fill the cache of the kernels in ``package``, or if the first
    kernels have been imported already.
    """
    global _only_loads
    folder = cache_folder(package)
    has_begun = f"{__package__}.words" in sys.modules
    _only_loads = not (INTERPRETED or has_begun or folder is None) and os.access(folder, os.W_OK)
    return _only_loads


def are_plain() -> bool:
    """Return whether helpers are plain functions: no kernel is compiled in this process."""
    return INTERPRETED or _only_loads


def take_over() -> int:
    """Load the kernels that the cache has got since they were imported; return how many still run interpreted.

    Any thread, also while others run the kernels: each call runs one or the other to its end.
    """
    for each in [*_waiting]:
        if each.load():
            _waiting.remove(each)
    return len(_waiting)


def interpreted_count() -> int:
    """Return how many kernels wait for their compiled code. Any thread."""
    return len(_waiting)


def is_compiled(function: Callable[..., Any]) -> bool:
    """Return whether this kernel, as its module names it now, runs compiled."""
    return isinstance(function, Dispatcher)


def _with_plain_results(function: F) -> F:
    """Make an interpreted kernel return Python integers, as a compiled one does. NumPy's integers would end up in
    tables and responses, and neither JSON nor msgpack accepts them."""

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        found = function(*arguments)
        if found is None:
            return None
        return tuple(map(int, found)) if isinstance(found, tuple) else int(found)

    return cast(F, run)


def inlined(function: F) -> F:
    """Compile a helper as part of each kernel that calls it."""
    if are_plain():
        return function
    compiled: F = numba.njit(**_COMPILE)(function)
    return compiled


def results(*kinds: Any) -> Any:
    """Return the type of a tuple result."""
    return types.Tuple(kinds)  # type: ignore[no-untyped-call] # Numba is untyped
