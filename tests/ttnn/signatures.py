"""Signatures of the real ttnn, whichever way a function was made, and of the stub.

A nanobind function has no ``inspect.signature``: it carries the text of one for each overload, with ``\\0``, ``\\1``
for the defaults, which stand beside it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from typing import Any

POSITIONAL, KEYWORD = "positional", "keyword"
MISSING = object()


class Parameter:
    """``default`` is MISSING where there is none."""

    def __init__(self, name: str, kind: str, default: Any) -> None:
        self.name, self.kind, self.default = name, kind, default

    def __repr__(self) -> str:
        return f"{self.name}={self.default!r} ({self.kind})" if self.default is not MISSING else self.name


Signature = list[Parameter]


def of_definition(node: ast.FunctionDef, defaults: dict[str, Any] | Sequence[Any]) -> Signature:
    """The parameters of a parsed ``def``. ``defaults``: names for evaluating them, or the values ``_0, _1, ...``."""
    names = defaults if isinstance(defaults, dict) else {f"_{i}": value for i, value in enumerate(defaults)}

    def value(expression: ast.expr | None) -> Any:
        if expression is None:
            return MISSING
        return eval(compile(ast.Expression(expression), "<default>", "eval"), {"__builtins__": {}}, dict(names))

    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    given = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    parameters = [
        Parameter(argument.arg, POSITIONAL, value(default))
        for argument, default in zip(positional, given, strict=True)
    ]
    parameters += [
        Parameter(argument.arg, KEYWORD, value(default))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return [parameter for parameter in parameters if parameter.name != "self"]


def of_nanobind(overloads: Sequence[Any]) -> list[Signature]:
    found = []
    for text, _doc, *rest in overloads:
        head = re.sub(r"\\(\d+)", r"_\1", text.rpartition(") ->")[0] + "): ...")
        # Some signatures are written by hand for the documentation, with the star escaped and the defaults spelt out.
        head = head.replace("\\*", "*")
        # nanobind allows a parameter without a default after one with: all that follow then have to be passed by
        # name, or after those before them. Annotations are C++ here and there: only names and defaults are read.
        head = re.sub(r'"[^"]*"', "object", head)
        required = _require_all(head)
        module = ast.parse(required)
        node = module.body[0]
        assert isinstance(node, ast.FunctionDef)
        values = list((rest[0] if rest else None) or ())
        signature = of_definition(node, [*values, _REQUIRED])
        found.append([_without_marker(parameter) for parameter in signature])
    return found


_REQUIRED = object()


def _require_all(head: str) -> str:
    """Give a parameter that has no default after one that has the marker's name as its default."""
    try:
        ast.parse(head)
    except SyntaxError:
        count = len(re.findall(r"= _\d+", head))
        parts = re.split(r"(, (?=\w+: ))", head)
        seen = False
        for index, part in enumerate(parts):
            if re.search(r"= _\d+", part):
                seen = True
            elif seen and re.match(r"\w+: ", part):
                body, tail = (part[:-6], "): ...") if part.endswith("): ...") else (part, "")
                parts[index] = f"{body} = _{count}{tail}"
        return "".join(parts)
    return head


def _without_marker(parameter: Parameter) -> Parameter:
    if parameter.default is _REQUIRED:
        return Parameter(parameter.name, parameter.kind, MISSING)
    return parameter


def of_real(thing: Any) -> list[Signature]:
    """Every overload of a function, method, operation or class of ttnn."""
    # An operation of ttnn wraps the function it was registered with.
    function = thing.function if type(thing).__name__ == "FastOperation" else thing
    for owner in (function, type(function).__call__, getattr(function, "__init__", None)):
        overloads = getattr(owner, "__nb_signature__", None)
        if overloads:
            return of_nanobind(overloads)
    parameters = inspect.signature(function).parameters.values()
    return [
        [
            Parameter(
                parameter.name,
                KEYWORD if parameter.kind is parameter.KEYWORD_ONLY else POSITIONAL,
                MISSING if parameter.default is parameter.empty else parameter.default,
            )
            for parameter in parameters
            if parameter.name != "self"
        ]
    ]


def misfit(ours: Signature, theirs: Signature) -> str | None:
    """Why a call that ``ours`` allows could not be made on ``theirs``, or would mean something else; None: it fits."""
    by_name = {parameter.name: parameter for parameter in theirs}
    for index, parameter in enumerate(ours):
        there = by_name.pop(parameter.name, None)
        if there is None:
            return f"has no parameter {parameter.name}"
        if parameter.kind == POSITIONAL and (
            there.kind != POSITIONAL or index >= len(theirs) or theirs[index].name != parameter.name
        ):
            return f"does not take {parameter.name} at place {index}"
        if (parameter.default is MISSING) != (there.default is MISSING):
            return f"{parameter.name} has a default on one side only"
        if parameter.default is not MISSING and not _same(parameter.default, there.default):
            return f"the default of {parameter.name} is {there.default!r}, not {parameter.default!r}"
    needed = [parameter.name for parameter in by_name.values() if parameter.default is MISSING]
    return f"also needs {', '.join(needed)}" if needed else None


def _same(ours: Any, theirs: Any) -> bool:
    return type(ours) is type(theirs) and bool(ours == theirs)
