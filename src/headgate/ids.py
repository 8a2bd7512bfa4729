"""Ids: prefixed ULIDs such as `run_01JD…`, which sort by creation time."""

from __future__ import annotations

import os
import random
import re
import secrets
import threading
from typing import Final
from urllib.parse import unquote

from headgate.clock import Clock
from headgate.errors import InvalidIdError, UserError

# Crockford's base 32, as ULIDs use it: without I, L, O and U, and in ASCII order.
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUE: Final = {character: value for value, character in enumerate(_ALPHABET)}
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHIFTS: Final = tuple(range(120, -1, -10))
_PREFIX: Final = re.compile(r"[a-z][a-z0-9]{0,15}")
# Parts of a path, and what a URL would have to encode twice.
_NOT_IN_IDS: Final = frozenset("/\\%")
_ID_CHARS_MAX: Final = 200
_RANDOM_BITS: Final = 80
_RANDOM_MAX: Final = (1 << _RANDOM_BITS) - 1
_TEXT_LENGTH: Final = 26


class IdMaker:
    """Makes strictly increasing ids, also within a millisecond and when the clock steps back.

    The body of an id is a ULID: 48 bits of milliseconds, then 80 random bits. Within a millisecond, the random part
    of the previous id is incremented.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last_ms = 0
        self._last_random = 0
        self._process = 0
        self._random = random.Random()

    def make(self, prefix: str) -> str:
        """Return a new id `{prefix}_{ulid}`. Raises `UserError` for an invalid prefix."""
        if not _PREFIX.fullmatch(prefix):
            raise UserError(f"id prefix {prefix!r}: use 1 to 16 lower-case letters and digits, starting with a letter")
        return f"{prefix}_{self.ulid()}"

    def ulid(self) -> str:
        """Return a bare ULID of 26 characters, for ids with another form of prefix (`evd-`, `INC-`)."""
        now_ms = int(self._clock.seconds() * 1000)
        with self._lock:
            if now_ms > self._last_ms:
                self._last_ms = now_ms
                # The top bit stays 0 so that increments within a millisecond cannot overflow.
                self._last_random = self._random_bits()
            elif self._last_random < _RANDOM_MAX:
                self._last_random += 1
            else:
                self._last_ms += 1
                self._last_random = 0
            number = (self._last_ms << _RANDOM_BITS) | self._last_random
        return _encode(number)

    def _random_bits(self) -> int:
        """Return random bits from a generator that is seeded from the kernel once per process.

        Ids need not be secret, and a system call per id would release the GIL on the path of every request.
        """
        process = os.getpid()
        if process != self._process:
            self._process = process
            self._random.seed(secrets.randbits(256))
        return self._random.getrandbits(_RANDOM_BITS - 1)


def check_new_id(what: str, text: str, chars_max: int = _ID_CHARS_MAX) -> str:
    """Return an id that a client has chosen. Raises `InvalidIdError` if a URL or file path could not hold it."""
    is_short = 1 <= len(text) <= chars_max
    is_plain = text.isprintable() and text.strip() == text and not text.startswith(".")
    if not is_short or not is_plain or _NOT_IN_IDS.intersection(text):
        raise InvalidIdError(
            f"{what} {text[:60]!r}: use 1 to {chars_max} printable characters without '/', '\\', '%' and surrounding "
            "space, not beginning with '.'"
        )
    return text


def check_new_path(what: str, text: str, chars_max: int = _ID_CHARS_MAX, *, is_foreign: bool = False) -> str:
    """Return an id that a client has chosen and that may have '/' between its parts. Raises `InvalidIdError`.

    Clients and proxies shorten a path with a part that is empty, `.` or `..`, also an encoded one, so that no URL would
    reach it. An id of another system (`is_foreign`) may be an address, which has an empty part and encoded slashes.
    """
    decoded = unquote(text)
    is_short = 1 <= len(text) <= chars_max
    is_plain = decoded.isprintable() and text.isprintable() and text.strip() == text and "\\" not in decoded
    unreachable = {".", ".."} if is_foreign else {"", ".", ".."}
    is_reached = unreachable.isdisjoint(text.split("/")) and unreachable.isdisjoint(decoded.split("/"))
    if not is_short or not is_plain or not is_reached or not (is_foreign or decoded == text):
        parts = "'.' or '..'" if is_foreign else "empty, '.' or '..'"
        excluded = "'\\'" if is_foreign else "'\\' and encoded ones such as '%2F'"
        raise InvalidIdError(
            f"{what} {text[:60]!r}: use 1 to {chars_max} printable characters without {excluded}; "
            f"a part between '/' must not be {parts}"
        )
    return text


def made_at_ms(identifier: str) -> int:
    """Return the creation time of an id or bare ULID in milliseconds. Raises `UserError` for anything else."""
    body = identifier[-_TEXT_LENGTH:]
    if len(body) != _TEXT_LENGTH or body[0] > "7" or any(character not in _VALUE for character in body):
        raise UserError(f"id {identifier!r}: does not end in a ULID of 26 characters")
    number = 0
    for character in body:
        number = number << 5 | _VALUE[character]
    return number >> _RANDOM_BITS


def _encode(number: int) -> str:
    # Two characters at a time, for speed: every step of a workflow makes several ids.
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
