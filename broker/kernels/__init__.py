"""The loops over bytes, compiled by Numba: arrays and integers in, integers and arrays out.

Importing a module of this package compiles its kernels or loads them from the cache; ``warm`` imports them one by one.
With ``NUMBA_DISABLE_JIT=1`` the same source runs interpreted, which the tests use. A broker compiles none itself: those
that are not in the cache run interpreted until a process of its own has compiled them (``app/kernel_compiler.py``).

==================  =====================================================================================
``record_crc``      the checksum over a whole record: written at its end, and checked
``text``            UTF-8 checks and Java's string hash
``msgpack_reader``  the heads of msgpack values
``produce``         a PRODUCE frame's messages: validate them, then make records of them for the CommitLog
``addresses``       memory by its address, and the C library, for the kernels of the next two
``short_sends``     PRODUCE frames of many connections: read, make records, build and send the answers
``short_pops``      POP_MESSAGE and ACK_MESSAGE frames of many connections: read, build and send the answers
``dispatch``        CommitLog records: check, and turn them into ConsumeQueue units and index keys, or find their flaws
``index``           put entries into an IndexFile, check one, compare its entries with keys
``gather``          choose ConsumeQueue units, copy and check the records of a response
``sequences``       producer runs, read back from the log
``deliver``         stored messages that are due, as new records of their target topics
``search``          the next record after damage; a broker loads it only if there is damage
``archive``         records of a fragment of the archive, as units and keys; loaded with ``archive.url``
==================  =====================================================================================
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

SERVING_MODULES = tuple(
    "record_crc text msgpack_reader produce dispatch gather index sequences addresses short_sends short_pops "
    "sync_loop deliver".split()
)
"""What every broker loads. They are compiled in this order: first what stores a message and delivers it."""
READER_SCAN = "..protocol.storage.reader.scan"
"""The scan of records that ``dump`` reads with, relative to ``flintmq.broker``."""
MODULES = (*SERVING_MODULES, "search", "archive", READER_SCAN)


PACKAGE = Path(__file__).parent
LOCK = "compiling.lock"
"""File of the cache that a process locks while it compiles."""


def any_compiled() -> bool:
    """Return whether the cache has a kernel of this version; if not, ``warm`` takes up to a minute."""
    from ...protocol.storage.arrays import jit  # imports Numba

    folder = jit.cache_folder(PACKAGE)
    return folder is not None and any(folder.glob("*.nbi"))


def warm(modules: Iterable[str] = MODULES) -> Iterator[tuple[str, float]]:
    """Compile every kernel of these modules, or load it from the cache; yields (module, seconds it took) after each."""
    # Numba compares the first array that it gets with a type of this module: imported then, it would stop the loop.
    importlib.import_module("numpy.ma")
    for name in modules:
        started = time.perf_counter()
        importlib.import_module(f".{name}", __name__)
        yield name.rpartition(".")[2], time.perf_counter() - started


def compile_all() -> Iterator[tuple[str, float]]:
    """Do as ``warm``, with every module, but let one process at a time compile; the others then find what it saved."""
    from ...protocol.storage.arrays import jit  # imports Numba

    folder = jit.cache_folder(PACKAGE)
    with contextlib.ExitStack() as opened:
        if folder is not None:
            with contextlib.suppress(OSError):  # another user's cache, or no room: compiling tells
                lock = opened.enter_context((folder / LOCK).open("ab"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield from warm()
