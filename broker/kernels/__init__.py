"""The loops over bytes, compiled by Numba: arrays and integers in, integers and arrays out.

Importing a module of this package compiles its kernels or loads them from the cache; ``warm`` imports them one by one.
With ``NUMBA_DISABLE_JIT=1`` the same source runs interpreted, which the tests use.

==================  =====================================================================================
``record_crc``      the checksum over a whole record: written at its end, and checked
``text``            UTF-8 checks and Java's string hash
``msgpack_reader``  the heads of msgpack values
``produce``         a PRODUCE frame's messages: validate them, then make records of them for the CommitLog
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

import importlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

SERVING_MODULES = tuple(
    "record_crc text msgpack_reader produce short_sends short_pops "
    "dispatch index gather sequences sync_loop deliver".split()
)
READER_SCAN = "..protocol.storage.reader.scan"
"""The scan of records that ``dump`` reads with, relative to ``flintmq.broker``."""
MODULES = (*SERVING_MODULES, "search", "archive", READER_SCAN)


def any_compiled() -> bool:
    """Return whether the cache has a kernel of this version; if not, ``warm`` takes up to a minute."""
    from ...protocol.storage.arrays import jit  # imports Numba

    folder = jit.cache_folder(Path(__file__).parent)
    return folder is not None and any(folder.glob("*.nbi"))


def warm(modules: Iterable[str] = MODULES) -> Iterator[tuple[str, float]]:
    """Compile every kernel of these modules, or load it from the cache; yields (module, seconds it took) after each."""
    for name in modules:
        started = time.perf_counter()
        importlib.import_module(f".{name}", __name__)
        yield name.rpartition(".")[2], time.perf_counter() - started
