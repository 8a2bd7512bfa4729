"""Writes the requirements of the image: those of requirements.lock that the program needs, and those that build it.

python deploy/container/lock.py
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parents[1]
# What the program in the image can use beside its own dependencies.
EXTRAS: Final = ("aws", "graphql", "grpc", "otel", "redis")
# Early patch releases need packages that later ones do not.
_OLDEST: Final = {"python_full_version": "3.11.0"}
# From pip-compile: a pin with its hashes on indented lines, then comments that name what needs it.
_PIN: Final = re.compile(r"(?m)^([A-Za-z0-9._-]+)==.+\\\n(?:    --hash=\S+(?: \\)?\n)+")


def rendered() -> dict[str, str]:
    """Return the files by name, as requirements.lock and pyproject.toml have them today."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = [each for extra in EXTRAS for each in project["project"]["optional-dependencies"][extra]]
    pins = {canonicalize_name(each.group(1)): each.group() for each in _PIN.finditer(_lock())}
    wanted = {
        "requirements.lock": [*project["project"]["dependencies"], *extras],
        "build-requirements.lock": project["build-system"]["requires"],
    }
    return {file: "".join(pins[name] for name in sorted(_closure(needed))) for file, needed in wanted.items()}


def _lock() -> str:
    return (ROOT / "requirements.lock").read_text()


def _closure(lines: Iterable[str]) -> set[str]:
    """Return the names of requirements and of all that they require, on this version of Python."""
    names: set[str] = set()
    left = list(_needed(lines, {""}))
    while left:
        name, extras = left.pop()
        fresh = name not in names or extras
        names.add(name)
        if fresh:
            left += [each for each in _needed(metadata.requires(name) or (), {"", *extras}) if each[0] not in names]
    return names


def _needed(lines: Iterable[str], extras: set[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for line in lines:
        each = Requirement(line)
        if each.marker is None or any(each.marker.evaluate({"extra": extra, **_OLDEST}) for extra in extras):
            yield canonicalize_name(each.name), frozenset(each.extras)


if __name__ == "__main__":
    for name, text in rendered().items():
        (FOLDER / name).write_text(text)
