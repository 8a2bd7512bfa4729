"""Handler modules: imports modules of the project, and checks the file of each package before any of its code runs."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from headgate.fanout.model.local_access import LocalAccess

# Folders of installed packages and of the standard library, wherever they are.
_INSTALLED: Final = frozenset({"site-packages", "dist-packages", "lib-dynload"})
_LIBRARY_PATHS: Final = ("stdlib", "platstdlib", "purelib", "platlib")


class ForeignModuleError(Exception):
    """A module that fan-outs must not name."""


def import_module(name: str, access: LocalAccess) -> ModuleType:
    """Import a module of the project or of an allowed package.

    Each package on the way is checked before it is imported, since finding a submodule imports its package. Raises
    `ForeignModuleError` for any other module, and whatever its code raises.
    """
    parts = name.split(".")
    if any(part.startswith("_") for part in parts):
        raise ForeignModuleError(f"module {name} is private; name a public one")
    if _is_allowed_package(name, access):
        return importlib.import_module(name)
    for depth in range(1, len(parts) + 1):
        prefix = ".".join(parts[:depth])
        _check(prefix, access)
        importlib.import_module(prefix)
    return sys.modules[name]


def member(owner: object, name: str, module_name: str) -> Any:  # noqa: ANN401 - whatever the module defines
    """Return a public member of the module, or of a class that it defines; None if there is none."""
    is_own_class = isinstance(owner, type) and owner.__module__ == module_name
    if name.startswith("_") or not (isinstance(owner, ModuleType) or is_own_class):
        return None
    return getattr(owner, name, None)


def is_own_function(found: object, module_name: str, access: LocalAccess) -> bool:
    """Whether the module itself defines this function.

    An import of another module's function would otherwise be a handler, such as `system` after `from os import system`.
    A class is not a handler: calling it runs code of its bases. A package that the operator has allowed may also have
    functions written in C.
    """
    try:
        plain = inspect.unwrap(found.__func__ if inspect.ismethod(found) else found)  # type: ignore[arg-type]
    except ValueError:
        return False
    if getattr(plain, "__module__", None) != module_name:
        return False
    return isinstance(plain, FunctionType) or (inspect.isbuiltin(plain) and _is_allowed_package(module_name, access))


@functools.lru_cache(maxsize=4096)
def is_library_file(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to this program."""
    real = Path(os.path.realpath(file))
    return bool(_INSTALLED.intersection(real.parts)) or any(map(real.is_relative_to, _libraries([real])))


def _is_allowed_package(name: str, access: LocalAccess) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:depth]) in access.packages for depth in range(1, len(parts) + 1))


def _check(name: str, access: LocalAccess) -> None:
    loaded = sys.modules.get(name)
    spec = importlib.util.find_spec(name) if loaded is None else loaded.__spec__
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    folders = [Path(os.path.realpath(folder)) for folder in access.folders]
    denied = [*_libraries(folders), *(Path(os.path.realpath(folder)) for folder in access.denied)]
    if all(_is_inside(path, folders, denied) for path in _locations(spec)):
        return
    where = f"the project folder {', '.join(map(str, folders))}"
    if not folders:
        where = "a project folder; this process has none, since it runs in the root or home folder: set project"
    raise ForeignModuleError(
        f"module {name} is not in {where}; move it there, name the handler with --handler, "
        "or list its package under fanout.handlers"
    )


def _locations(spec: ModuleSpec) -> list[Path]:
    """Return the resolved file of a module, or the folders of a package without `__init__.py`."""
    if spec.has_location and spec.origin is not None:
        return [Path(os.path.realpath(spec.origin))]
    # A built-in module has neither; the root is in no project.
    found = [Path(os.path.realpath(folder)) for folder in spec.submodule_search_locations or ()]
    return found or [Path("/")]


def _is_inside(path: Path, folders: list[Path], denied: list[Path]) -> bool:
    if not path.exists() or _INSTALLED.intersection(path.parts):
        # A module in an archive has no file of its own.
        return False
    return any(map(path.is_relative_to, folders)) and not any(map(path.is_relative_to, denied))


def _libraries(folders: list[Path]) -> list[Path]:
    """Return the folders of Python, of installed packages and of this program."""
    paths = [Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in _LIBRARY_PATHS)]
    prefixes = [Path(prefix) for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}]
    resolved = [Path(os.path.realpath(path)) for path in paths]
    # /usr is a prefix too, and a project may be in /usr/src: its libraries are excluded by themselves.
    return resolved + [
        real
        for real in (Path(os.path.realpath(prefix)) for prefix in prefixes)
        if not any(folder.is_relative_to(real) for folder in folders)
    ]
