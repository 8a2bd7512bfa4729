"""Variable substitution: replaces `${name}` in the text of a definition, as Terraform's templatefile does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# `$${` comes first: it is the escape for a literal `${`.
_PLACEHOLDER: Final = re.compile(r"\$\$\{|\$\{\s*([A-Za-z_][A-Za-z0-9_-]*)\s*\}")
_UNRESOLVED: Final = re.compile(r"\$\{\s*([A-Za-z_][A-Za-z0-9_.:-]*)\s*\}")


def substitute(text: str, variables: Mapping[str, str]) -> tuple[str, set[str]]:
    """Return the text with `variables` substituted, and the names that have no value.

    Values are inserted verbatim, as by Terraform: inside a JSON string the caller escapes them. Inserted text is not
    substituted again. `$${` becomes `${`. A placeholder without a value stays as written.
    """
    missing: set[str] = set()

    def replacement(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "${"
        if name not in variables:
            missing.add(name)
            return match.group(0)
        return variables[name]

    return _PLACEHOLDER.sub(replacement, text), missing


def unresolved(text: str) -> list[str]:
    """Return the names of the placeholders left in a string of a definition."""
    return _UNRESOLVED.findall(text)
