"""Optional libraries of probes: imported on first use; a missing one is an error that names the extra."""

from __future__ import annotations

import importlib
from typing import Any

from headgate.errors import DefinitionError


def library(module: str, extra: str) -> Any:  # noqa: ANN401 - a module
    """Import a module of an extra. Raises `DefinitionError` with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        raise DefinitionError(
            f"{exc.name} is not installed here; install it with: pip install 'headgate[{extra}]'"
        ) from exc
