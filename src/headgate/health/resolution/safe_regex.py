"""Regular expressions that cannot explode: a small dialect, refused where matching could take long.

`re` backtracks, so that a few characters such as `(a+)+$` can cost years. What is accepted here is read first, and the
ways in which it could be matched against the longest text are counted: each repetition of one element multiplies them
by how often it may repeat, and the search for a beginning by every place there is. Above a bound it is refused.
"""

from __future__ import annotations

import re
from typing import Final

from headgate.errors import InvalidPayloadError

PATTERN_LENGTH_MAX: Final = 256
# Longer text matches no pattern: what routes messages is short.
TEXT_LENGTH_MAX: Final = 512
# Two repetitions without end, or one and a search: a few milliseconds at the worst.
WAYS_MAX: Final = TEXT_LENGTH_MAX**2
_COUNTED: Final = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}")
# `]` right after the opening is a member and never the end, as in `re`.
_CLASS: Final = re.compile(r"\[\^?+\]?+(?:\\.|[^\]\\\[])*\]")
_ESCAPED: Final = re.compile(r"\\.")
# Python warns that the meaning of these may change.
_SET_OPERATION: Final = re.compile(r"--|&&|~~|\|\|")
_ESCAPES: Final = frozenset("dDwWsSbB.\\/|()[]{}*+?^$-_ :;,#@!%&=<>'\"~`nrt")


def compiled(pattern: str, *, field: str) -> re.Pattern[str]:
    """Return a pattern for `search`. Raises `InvalidPayloadError`, naming the field, for one that is not accepted."""
    if not 1 <= len(pattern) <= PATTERN_LENGTH_MAX:
        raise InvalidPayloadError(f"{field}: a regular expression of 1 to {PATTERN_LENGTH_MAX} characters, please")
    try:
        ways = _Reader(pattern).ways()
        made = re.compile(pattern)
    except (_Refused, re.error, OverflowError) as exc:
        raise InvalidPayloadError(f"{field} {pattern[:80]!r}: {exc}") from exc
    if ways > WAYS_MAX:
        raise InvalidPayloadError(
            f"{field} {pattern[:80]!r}: it could take very long; begin it with ^, and repeat fewer things"
        )
    return made


class _Refused(Exception):
    """Why a pattern is not accepted."""


class _Reader:
    """Reads a pattern from left to right and counts the ways to match it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def ways(self) -> int:
        """Return in how many ways the longest text could be tried. Raises `_Refused`."""
        ways, _ = self._alternatives(depth=0)
        if self._at < len(self._pattern):
            raise _Refused(f"a ) too many at character {self._at + 1}")
        is_anchored = self._pattern.startswith("^") and "|" not in self._pattern
        return ways if is_anchored else ways * TEXT_LENGTH_MAX

    def _alternatives(self, depth: int) -> tuple[int, bool]:
        """Read alternatives up to a closing bracket. Returns the ways, and whether it has but one way and length."""
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
                raise _Refused("what is repeated may itself neither repeat nor have alternatives; write it otherwise")
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
        """Read what says how often, if anything does. Returns how many choices there are, and if it is a loop."""
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
            raise _Refused(f"a repetition of a repetition at character {self._at + 1}")

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]
