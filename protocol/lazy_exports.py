"""Names that a package exports and imports on first use; the package's stub is their only list.

The command line and its completion have to be instant and need few of the names, so ``import flintmq.client`` must not
import all of them; a handler of the broker needs one or two names of the store. Type checkers and editors read the
stub, ``__init__.pyi``, in place of the package; here the same file says which module has each name.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Any


def lazy_exports(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package, made from the imports in its stub."""
    stub = pkgutil.get_data(package, "__init__.pyi")
    assert stub is not None, f"{package} has no stub"
    homes = {
        name.asname or name.name: "." * statement.level + (statement.module or "")
        for statement in ast.parse(stub).body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        """Import an exported name on first use."""
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(importlib.import_module(homes[name], package), name)
        return value

    def names() -> list[str]:
        """Return the names of the package, including exported ones that nothing has used yet."""
        return sorted({*namespace, *homes})

    return sorted(homes), get, names
