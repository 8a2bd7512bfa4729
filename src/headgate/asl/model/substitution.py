"""Variable substitution: replaces `${name}` in the text of a definition, as Terraform's templatefile does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# Names as in Terraform (name), CloudFormation (Function.Arn, AWS::Region) and SAM. `$${` comes first: it is the escape
# for a literal `${`.
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.:-]*"
_PLACEHOLDER: Final = re.compile(rf"\$\$\{{|\$\{{\s*({_NAME})\s*\}}")
_UNRESOLVED: Final = re.compile(rf"\$\{{\s*({_NAME})\s*\}}")


class Substitution:
    """Replaces placeholders by the values of variables, and records which names it met."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self.used: set[str] = set()
        # Names in the text that have no value.
        self.missing: set[str] = set()

    def fill(self, text: str) -> str:
        """Return the text with the variables substituted.

        Values are inserted verbatim, as by Terraform: inside a JSON string the caller escapes them. Inserted text is
        not substituted again. `$${` becomes `${`. A placeholder without a value stays as written.
        """
        return _PLACEHOLDER.sub(self._replacement, text)

    def _replacement(self, match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "${"
        if name not in self._variables:
            self.missing.add(name)
            return match.group(0)
        self.used.add(name)
        return self._variables[name]

    @property
    def unused(self) -> list[str]:
        """The given variables that no text had."""
        return sorted(self._variables.keys() - self.used)


def unresolved(text: str) -> list[str]:
    """Return the names of the placeholders left in a string of a definition."""
    return _UNRESOLVED.findall(text)


def replace_unresolved(text: str, word: str) -> str:
    """Return the text with a word in place of each placeholder left in it."""
    return _UNRESOLVED.sub(word, text)
