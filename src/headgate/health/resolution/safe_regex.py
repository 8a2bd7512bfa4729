"""Safe regular expressions: a subset of `re` that excludes catastrophic backtracking.

`re` backtracks, so that a short pattern such as `(a+)+$` can take years. A pattern is parsed first, and the number of
ways to match it against the longest text is computed: each repetition multiplies it by its maximum count, and an
unanchored search by the number of positions. Above a limit the pattern is rejected.
"""

from __future__ import annotations

import re
from typing import Final

from headgate.errors import InvalidPayloadError

PATTERN_LENGTH_MAX: Final = 256
# Longer text never matches: routing fields are short.
TEXT_LENGTH_MAX: Final = 512
# Two unbounded repetitions, or one and a search: a few milliseconds at worst.
WAYS_MAX: Final = TEXT_LENGTH_MAX**2
_COUNTED: Final = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}")
# `]` right after the opening bracket is a member and not the end, as in `re`.
_CLASS: Final = re.compile(r"\[\^?+\]?+(?:\\.|[^\]\\\[])*\]")
_ESCAPED: Final = re.compile(r"\\.")
# Python warns that their meaning may change.
_SET_OPERATION: Final = re.compile(r"--|&&|~~|\|\|")
_ESCAPES: Final = frozenset("dDwWsSbB.\\/|()[]{}*+?^$-_ :;,#@!%&=<>'\"~`nrt")


def compiled(pattern: str, *, field: str) -> re.Pattern[str]:
    """Return a pattern for `search`. Raises `InvalidPayloadError`, naming the field, for a rejected one."""
    if not 1 <= len(pattern) <= PATTERN_LENGTH_MAX:
        raise InvalidPayloadError(f"{field}: give a regular expression of 1 to {PATTERN_LENGTH_MAX} characters")
    try:
        ways = _Reader(pattern).ways()
        made = re.compile(pattern)
    except (_Refused, re.error, OverflowError) as exc:
        raise InvalidPayloadError(f"{field} {pattern[:80]!r}: {exc}") from exc
    if ways > WAYS_MAX:
        raise InvalidPayloadError(
            f"{field} {pattern[:80]!r}: it could take very long; start it with ^, and use fewer repetitions"
        )
    return made


class _Refused(Exception):
    """Why a pattern is rejected."""


class _Reader:
    """Parses a pattern from left to right and counts the ways to match it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def ways(self) -> int:
        """Return the number of ways to match the longest text. Raises `_Refused`."""
        ways, _ = self._alternatives(depth=0)
        if self._at < len(self._pattern):
            raise _Refused(f"unbalanced ) at character {self._at + 1}")
        is_anchored = self._pattern.startswith("^") and "|" not in self._pattern
        return ways if is_anchored else ways * TEXT_LENGTH_MAX

    def _alternatives(self, depth: int) -> tuple[int, bool]:
        """Parse alternatives up to a closing bracket. Return the ways, and whether it has only one way and length."""
        if depth > 10:
            raise _Refused("brackets are nested more than 10 deep")
        ways, is_fixed = self._sequence(depth)
        while self._peek() == "|":
            self._at += 1
            ways += self._sequence(depth)[0]
            is_fixed = False
        return ways, is_fixed

    def _sequence(self, depth: int) -> tuple[int, bool]:
        ways, is_fixed = 1, True
        while self._peek() not in ("", "|", ")"):
            element_ways, element_is_fixed = self._element(depth)
            repeats, is_loop = self._repeats()
            if is_loop and not element_is_fixed:
                raise _Refused("a repeated group may neither repeat nor have alternatives itself")
            ways *= element_ways * repeats
            is_fixed = is_fixed and element_is_fixed and repeats == 1
        return ways, is_fixed

    def _element(self, depth: int) -> tuple[int, bool]:
        character = self._peek()
        if character == "(":
            return self._group(depth)
        if character == "[":
            found = _CLASS.match(self._pattern, self._at)
            if found is None:
                raise _Refused(f"the [ at character {self._at + 1} is not closed, or has another in it")
            if _SET_OPERATION.search(_ESCAPED.sub(" ", found[0])):
                raise _Refused("-- && ~~ and || in [] are reserved for set operations; escape one of the two with \\")
            self._at = found.end()
            return 1, True
        if character in "*+?{":
            raise _Refused(f"nothing to repeat at character {self._at + 1}")
        if character == "\\":
            self._at += 1
            if self._peek() not in _ESCAPES:
                raise _Refused(f"\\{self._peek()} is not supported")
        self._at += 1
        return 1, True

    def _group(self, depth: int) -> tuple[int, bool]:
        self._at += 1
        if self._pattern.startswith("?:", self._at):
            self._at += 2
        elif self._peek() == "?":
            raise _Refused("of (? only (?: is supported: no look-around, no names, no flags")
        found = self._alternatives(depth + 1)
        if self._peek() != ")":
            raise _Refused("a ( is not closed")
        self._at += 1
        return found

    def _repeats(self) -> tuple[int, bool]:
        """Parse an optional quantifier. Return the number of choices, and whether it is unbounded."""
        character = self._peek()
        counted = _COUNTED.match(self._pattern, self._at) if character == "{" else None
        if counted is not None:
            self._at = counted.end()
            least, comma, most = int(counted[1]), counted[2], counted[3]
            high = least if not comma else int(most) if most else TEXT_LENGTH_MAX
            ways, is_loop = max(1, min(high, TEXT_LENGTH_MAX) - least + 1), high > 1
        elif character in ("*", "+"):
            self._at += 1
            ways, is_loop = TEXT_LENGTH_MAX, True
        elif character == "?":
            self._at += 1
            ways, is_loop = 2, False
        else:
            return 1, False
        self._skip_modifier()
        return ways, is_loop

    def _skip_modifier(self) -> None:
        if self._peek() == "?":
            self._at += 1
        if self._peek() in ("*", "+", "?"):
            raise _Refused(f"a repeated repetition at character {self._at + 1}")

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]
