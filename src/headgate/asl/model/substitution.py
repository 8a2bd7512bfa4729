"""Substitution: `${name}` in the text of a definition, as Terraform's templatefile replaces it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# `$${` comes first: it is how a template writes `${` itself.
_PLACEHOLDER: Final = re.compile(r"\$\$\{|\$\{\s*([A-Za-z_][A-Za-z0-9_-]*)\s*\}")
_UNRESOLVED: Final = re.compile(r"\$\{\s*([A-Za-z_][A-Za-z0-9_.:-]*)\s*\}")


def substitute(text: str, variables: Mapping[str, str]) -> tuple[str, set[str]]:
    """Return the text with the variables that are given put in, and the names that are not given.

    Values go in as they are: whoever puts one inside a JSON string gives it so escaped, as with Terraform. What is
    put in is not looked at again. `$${` becomes `${`. Names that are not given stay as they are written.
    """
    missing: set[str] = set()

    def put(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "${"
        if name not in variables:
            missing.add(name)
            return match.group(0)
        return variables[name]

    return _PLACEHOLDER.sub(put, text), missing


def unresolved(text: str) -> list[str]:
    """Return the names of the placeholders that a string of a definition still has."""
    return _UNRESOLVED.findall(text)
