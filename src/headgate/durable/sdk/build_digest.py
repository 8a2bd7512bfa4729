"""Build digest: names the code of an app by its source files, for workers that are given no build id.

Two workers with the same files have the same build. A change of any file that the app imports from its own folder, or
of the version of Headgate, makes another build.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from types import CodeType
from typing import Any, Final

from headgate.durable.sdk.app import App

# Long enough that the builds of one fleet differ, short enough to be read.
DIGEST_BYTES: Final = 6
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


def build_of(app: App) -> str:
    """Return the digest of the source of an app, its imports within its own folder, and the version of Headgate."""
    digest = hashlib.blake2b(f"{app.name}\0{version('headgate')}".encode(), digest_size=DIGEST_BYTES)
    functions = [each.function for each in _declared(app) if _package(each.function.__module__) != "headgate"]
    # Functions that one factory made have the same name: only the names are compared.
    for name, function in sorted(((each.__qualname__, each) for each in functions), key=itemgetter(0)):
        if _source_file(function.__module__) is None:
            # Defined in a shell or by exec.
            digest.update(f"\0{name}\0".encode())
            digest.update(_code_digest(getattr(function, "__code__", None)))
    digest.update(_source_digest(frozenset(each.__module__ for each in functions)))
    return digest.hexdigest()


@lru_cache(maxsize=32)
def _source_digest(modules: frozenset[str]) -> bytes:
    # Cached: a process loads its code once.
    digest = hashlib.blake2b(digest_size=16)
    for name, source in source_files(modules):
        digest.update(f"{name}\0{len(source)}\0".encode())
        digest.update(source)
    return digest.digest()


def source_files(modules: Iterable[str]) -> list[tuple[str, bytes]]:
    """Return the files of these modules and of what they import from the same folder, by module name."""
    found: dict[str, bytes] = {}
    pending = [(name, file) for name in modules if (file := _source_file(name)) is not None]
    while pending:
        name, file = pending.pop()
        if name in found:
            continue
        try:
            source = found[name] = file.read_bytes()
            tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError):
            found.setdefault(name, b"")
            continue
        root = _root(name, file)
        is_installed = not _INSTALLED.isdisjoint(file.parts)
        for imported in _imported(tree, name, is_package=file.name == "__init__.py"):
            package = _package(imported)
            # Next to an installed package, and to an app in the package of a Lambda function, are those of others.
            if package != _package(name) and (is_installed or package in _installed_in(root)):
                continue
            pending.extend((each, path) for each, path in _resolve(root, imported) if each not in found)
    return sorted(found.items())


def _declared(app: App) -> Iterator[Any]:
    yield from app.workflows.values()
    yield from app.activities.values()
    yield from app.handlers.values()


def _package(module: str) -> str:
    return module.partition(".")[0]


@lru_cache(maxsize=8)
def _installed_in(root: Path) -> frozenset[str]:
    """Return the packages that are installed into a folder, whose versions are not those of the app's code."""
    records = [path.read_text() for path in root.glob("*.dist-info/RECORD")]
    files = [line.partition(",")[0].partition("/")[0] for record in records for line in record.splitlines()]
    return frozenset({"headgate", *(each.removesuffix(".py") for each in files)})


def _source_file(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).absolute() if file is not None and file.endswith(".py") and Path(file).is_file() else None


def _root(name: str, file: Path) -> Path:
    """Return the folder from which a module's own package, or the module itself, is imported."""
    depth = name.count(".") + (file.name == "__init__.py")
    return file.parents[min(depth, len(file.parents) - 1)]


def _imported(tree: ast.Module, name: str, *, is_package: bool) -> Iterator[str]:
    """Yield the names of all modules that a module imports, anywhere in it, as if every name were a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")[: None if is_package and node.level == 1 else -node.level + is_package]
                base = ".".join([*parents, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _resolve(root: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the file of a module below a folder, and those of the packages that it is in."""
    parts = [part for part in name.split(".") if part]
    for end in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:end])
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                yield ".".join(parts[:end]), file


def _code_digest(code: CodeType | None) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    if code is not None:
        digest.update(code.co_code)
        for constant in code.co_consts:
            digest.update(_code_digest(constant) if isinstance(constant, CodeType) else repr(constant).encode())
        digest.update(repr(code.co_names).encode())
    return digest.digest()
