"""The stub ``typings/ttnn`` and our calls of ttnn, as what the wheel has to have. No list here is kept by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .signatures import Signature, misfit, of_definition, of_real

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "typings" / "ttnn"
ADAPTER = ROOT / "src" / "adapters" / "ttnn"


def stub_modules() -> dict[str, ast.Module]:
    """Dotted module name to its parsed stub."""
    modules = {}
    for path in sorted(STUB.rglob("*.pyi")):
        parts = ("ttnn", *path.relative_to(STUB).with_suffix("").parts)
        modules[".".join(part for part in parts if part != "__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return modules


def faults_of(name: str, body: list[ast.stmt], real: Any, scope: dict[str, Any]) -> Iterator[str]:
    """What the stub says of the members of ``real`` (a module or a class) that is not so. ``scope``: for defaults."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _class_faults(f"{name}.{node.name}", node, getattr(real, node.name, None), scope)
        elif isinstance(node, ast.FunctionDef):
            yield from _function_faults(f"{name}.{node.name}", node, getattr(real, node.name, None), scope)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            wanted = ast.unparse(node.annotation)
            found = type(getattr(real, node.target.id, None)).__name__
            if found != wanted:
                yield f"{name}.{node.target.id} is a {found}, not a {wanted}"


def _class_faults(name: str, node: ast.ClassDef, real: Any, scope: dict[str, Any]) -> Iterator[str]:
    if not isinstance(real, type):
        yield f"{name} is not a class of the wheel"
        return
    if any(ast.unparse(base) == "enum.Enum" for base in node.bases):
        for statement in node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                member = statement.targets[0].id
                value = ast.literal_eval(statement.value)
                found = getattr(getattr(real, member, None), "value", None)
                if found != value:
                    yield f"{name}.{member} is {found}, not {value}"
        return
    yield from faults_of(name, node.body, real, scope)


def _function_faults(name: str, node: ast.FunctionDef, real: Any, scope: dict[str, Any]) -> Iterator[str]:
    if real is None:
        yield f"{name} is not in the wheel"
    elif any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):
        if callable(real):
            yield f"{name} is a method, not a property"
    elif node.name not in ("__iter__", "__getitem__"):
        yield from signature_faults(name, of_definition(node, scope), real)


def signature_faults(name: str, ours: Signature, real: Any) -> Iterator[str]:
    """One line if ``ours`` fits no overload of ``real``."""
    reasons = [misfit(ours, theirs) for theirs in of_real(real)]
    if None not in reasons:
        yield f"{name} {'; '.join(str(reason) for reason in reasons)}"


def chains(path: Path) -> Iterator[tuple[str, ast.Call | None]]:
    """Every dotted name that ``path`` takes from ttnn, with the call where it is called."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    roots = {"ttnn": "ttnn"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "ttnn":
            roots.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        dotted = _dotted(node, roots)
        if dotted is not None:
            yield dotted, called.get(id(node))


def _dotted(node: ast.AST, roots: dict[str, str]) -> str | None:
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value, roots)
        return None if inner is None else f"{inner}.{node.attr}"
    return roots.get(node.id) if isinstance(node, ast.Name) else None


def call_fault(call: ast.Call, real: Any) -> str | None:
    """Why this call binds to no overload of ``real``; None: it does."""
    if any(isinstance(argument, ast.Starred) for argument in call.args) or any(k.arg is None for k in call.keywords):
        return None
    reasons = [_unbound(call, theirs) for theirs in of_real(real)]
    return None if None in reasons else "; ".join(str(reason) for reason in reasons)


def _unbound(call: ast.Call, theirs: Signature) -> str | None:
    from .signatures import MISSING, POSITIONAL

    by_place = [parameter.name for parameter in theirs if parameter.kind == POSITIONAL]
    if len(call.args) > len(by_place):
        return f"takes {len(by_place)} arguments by place, not {len(call.args)}"
    given = {*by_place[: len(call.args)], *(str(keyword.arg) for keyword in call.keywords)}
    unknown = given - {parameter.name for parameter in theirs}
    if unknown:
        return f"has no parameter {', '.join(sorted(unknown))}"
    needed = [parameter.name for parameter in theirs if parameter.default is MISSING and parameter.name not in given]
    return f"also needs {', '.join(needed)}" if needed else None
