"""Finds the parts of a script that can affect a measurement: the functions that a probe calls, and all they use.

A probe that meets the very same parts with the same inputs finds the same. So a repair of one function costs the probes
that can come to it, and not the others.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from itertools import chain

# By these a function can come to a part that it does not name, or to a file, or leave something for the next probe.
_BY_OTHER_WAYS = {
    *("open", "os", "pathlib", "Path"),
    *("globals", "vars", "locals", "setattr", "delattr", "getattr", "exec", "eval", "compile", "__import__", "type"),
    *("sys", "gc", "builtins", "importlib", "inspect"),
}
_KNOWN = {"torch", *sys.stdlib_module_names}  # another module may be edited, and the script stays as it is


class Parts:
    """The parts of a script: its functions, classes and constants by name, and what each of them names.

    A script is taken apart only where nothing but these and imports stands in it, and no part changes what is outside
    itself; any other one is a single part, and its text may not be all that it hangs on: `apart` says which it is.
    """

    def __init__(self, text: str) -> None:
        self._always: list[str] = []
        self._parts: dict[str, list[ast.stmt]] = {}
        for statement in ast.parse(text).body:
            for name in _defines(statement):
                self._parts.setdefault(name, []).append(statement)
            if not _defines(statement):
                self._always.append(ast.dump(statement))
            if isinstance(statement, ast.Import | ast.ImportFrom):
                if not _KNOWN.issuperset(_modules(statement)):
                    self._parts[""] = []
                for alias in statement.names:
                    self._parts.setdefault(alias.asname or alias.name.partition(".")[0], [])
            elif not _defines(statement) and not _does_nothing(statement):
                self._parts[""] = []
        self.apart = "" not in self._parts and not any(map(self._reaches_out, chain(*self._parts.values())))
        if not self.apart:
            self._always, self._parts = [text], {}
        self._texts = {name: [ast.dump(part) for part in parts] for name, parts in self._parts.items()}
        self._names = {name: set(chain(*map(_names_in, parts))) for name, parts in self._parts.items()}

    def met(self, roots: Iterable[str]) -> set[str]:
        """The names of the parts that a probe which calls `roots` can come to."""
        met, left = set[str](), [*roots]
        while left:
            name = left.pop()
            if name in self._parts and name not in met:
                met.add(name)
                left += self._names[name]
        return met

    def text(self, roots: Iterable[str]) -> str:
        """These parts as text, and what stands beside all parts; without comments, places and line numbers."""
        return "\n".join([*self._always, *chain(*(self._texts[name] for name in sorted(self.met(roots))))])

    def _reaches_out(self, part: ast.stmt) -> bool:
        for node in ast.walk(part):
            if isinstance(node, ast.Global) or (isinstance(node, ast.Name) and node.id in _BY_OTHER_WAYS):
                return True
            if isinstance(node, ast.Attribute) and node.attr in ("__class__", "__globals__"):
                return True
            changes = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
            if changes or (isinstance(node, ast.Attribute) and node.attr == "__dict__"):
                owner: ast.AST = node
                while isinstance(owner, ast.Attribute | ast.Subscript):
                    owner = owner.value
                if not isinstance(owner, ast.Name) or owner.id in self._parts:
                    return True
        return False


def _modules(statement: ast.Import | ast.ImportFrom) -> set[str]:
    """The packages that are imported; "" for a relative one."""
    if isinstance(statement, ast.ImportFrom):
        return {"" if statement.level else (statement.module or "").partition(".")[0]}
    return {alias.name.partition(".")[0] for alias in statement.names}


def _names_in(part: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}


def _defines(statement: ast.stmt) -> list[str]:
    """The names of a part that keeps nothing from one call to the next; none for any other statement."""
    if isinstance(statement, ast.FunctionDef):
        defaults = [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]
        plain = all(isinstance(value, ast.Constant | ast.Name) for value in defaults)
        return [statement.name] if plain and all(map(_is_of_torch, statement.decorator_list)) else []
    if isinstance(statement, ast.ClassDef):
        plain = all(_does_nothing(inner) or _defines(inner) for inner in statement.body)
        return [statement.name] if plain and not statement.decorator_list and not statement.keywords else []
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return []


def _is_of_torch(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith("torch.")


def _does_nothing(statement: ast.stmt) -> bool:
    """A docstring, `pass`, or what is done only where the script is run as a program."""
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test) == "__name__ == '__main__'" and not statement.orelse
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
