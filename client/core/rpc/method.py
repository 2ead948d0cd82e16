"""Methods that both clients have: their arguments and their meaning are written once, where the operation is made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .operation import Operation

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def described(method: MethodT, make: Callable[..., Operation[Any]]) -> MethodT:
    """Give a method the name, the docstring and the arguments of the function that makes its operation."""
    functools.update_wrapper(method, make)
    signature = inspect.signature(make)
    # Annotations are strings in this package. Without this, ``help`` would show the operation instead of its result.
    result = str(signature.return_annotation).removeprefix("Operation[").removesuffix("]")
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *signature.parameters.values()]
    method.__signature__ = signature.replace(  # type: ignore[attr-defined] # inspect reads it from any callable
        parameters=parameters, return_annotation=result
    )
    return method
