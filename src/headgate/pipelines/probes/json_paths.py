"""JSON paths of HTTP probes: compiled without functions."""

from __future__ import annotations

from typing import Final

from jsonpath import JSONPath, JSONPathEnvironment
from jsonpath.exceptions import JSONPathError
from jsonpath.path import CompoundJSONPath

from headgate.errors import DefinitionError
from headgate.pipelines.definition.model import Json


class _Environment(JSONPathEnvironment):
    def setup_function_extensions(self) -> None:
        """Register none: a regular expression of match() may take very long."""


_PATHS: Final = _Environment(strict=True, filter_caching=False)


def compile_path(path: str) -> JSONPath | CompoundJSONPath:
    """Return a compiled path. Raises `DefinitionError`."""
    try:
        return _PATHS.compile(path)
    except JSONPathError as exc:
        raise DefinitionError(f"value {path[:80]!r} is no JSONPath: {exc}; write $.data.count") from exc


def values_at(path: str, document: Json) -> list[Json]:
    """Return the values at a path of a document. Raises `DefinitionError` for a path that does not apply to it."""
    try:
        return compile_path(path).findall(document)
    except JSONPathError as exc:
        raise DefinitionError(f"value {path[:80]!r} does not apply: {exc}") from exc
