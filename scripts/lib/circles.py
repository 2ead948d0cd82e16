"""A contract for import-linter: no circle of imports, those for types alone included.

Two modules that know each other can be read, tested and moved only together, even if one of them needs the other for an
annotation alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import grimp
from importlinter import Contract, ContractCheck, fields, output
from importlinter.application import contract_utils
from importlinter.application.contract_utils import AlertLevel

Imports = Mapping[str, frozenset[str]]


class NoCircles(Contract):
    """``ignore_imports``: those that may close a circle."""

    type_name = "no_circles"
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Build the graph anew: the one that contracts get has no imports for types."""
        whole = grimp.build_graph(*self.session_options["root_packages"], exclude_type_checking_imports=False)
        contract_utils.remove_ignored_imports(
            graph=whole,
            ignore_imports=self.ignore_imports,  # type: ignore[arg-type]  # the value of the field
            unmatched_alerting=AlertLevel.ERROR,
        )
        imports = {module: frozenset(whole.find_modules_directly_imported_by(module)) for module in whole.modules}
        found = in_circles(imports)
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the imports that are left when everything outside of circles is taken away."""
        output.print_error("These modules import each other, if only for types:")
        for module, imported in sorted(check.metadata["found"].items()):
            for other in sorted(imported):
                output.indent_cursor()
                output.print_error(f"{module} -> {other}", bold=False)


def in_circles(imports: Imports) -> Imports:
    """Return the imports among the modules that remain when those that import none of the others, and those that none
    of the others imports, are taken away again and again."""
    while True:
        used = frozenset().union(*imports.values())
        kept = {module for module, imported in imports.items() if imported and module in used}
        if len(kept) == len(imports):
            return imports
        imports = {module: imports[module] & kept for module in kept}
