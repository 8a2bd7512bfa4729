"""Ids that sort by the time they were made and say what they name: `run_01JD…`."""

from __future__ import annotations

import os
import random
import re
import secrets
import threading
from typing import Final

from headgate.clock import Clock
from headgate.errors import UserError

# Crockford's base 32, as ULIDs use it: no I, L, O, U, and its order is the order of the characters.
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUE: Final = {character: value for value, character in enumerate(_ALPHABET)}
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHIFTS: Final = tuple(range(120, -1, -10))
_PREFIX: Final = re.compile(r"[a-z][a-z0-9]{0,15}")
_RANDOM_BITS: Final = 80
_RANDOM_MAX: Final = (1 << _RANDOM_BITS) - 1
_TEXT_LENGTH: Final = 26


class IdMaker:
    """Makes ids that increase strictly within this maker, also within a millisecond and when the clock steps back.

    The body of an id is a ULID: 48 bits of milliseconds, then 80 random bits. After the first id of a
    millisecond the random part is incremented rather than drawn again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last_ms = 0
        self._last_random = 0
        self._process = 0
        self._chance = random.Random()

    def make(self, prefix: str) -> str:
        """Return a new id `{prefix}_{ulid}`. Raises `UserError` for a prefix that is not a short lower-case word."""
        if not _PREFIX.fullmatch(prefix):
            raise UserError(f"id prefix {prefix!r}: use 1 to 16 lower-case letters and digits, starting with a letter")
        return f"{prefix}_{self.ulid()}"

    def ulid(self) -> str:
        """Return a bare ULID of 26 characters, for ids whose prefix is of another form (`evd-`, `INC-`)."""
        now_ms = int(self._clock.seconds() * 1000)
        with self._lock:
            if now_ms > self._last_ms:
                self._last_ms = now_ms
                # The top bit stays free so that incrementing within a millisecond cannot overflow.
                self._last_random = self._drawn()
            elif self._last_random < _RANDOM_MAX:
                self._last_random += 1
            else:
                self._last_ms += 1
                self._last_random = 0
            number = (self._last_ms << _RANDOM_BITS) | self._last_random
        return _encode(number)

    def _drawn(self) -> int:
        """Return random bits. Ids are unique but no secrets, so the kernel is asked once in a process, not for each.

        Asking it lets other threads go first, and ids are made on the path of every request.
        """
        process = os.getpid()
        if process != self._process:
            self._process = process
            self._chance.seed(secrets.randbits(256))
        return self._chance.getrandbits(_RANDOM_BITS - 1)


def made_at_ms(identifier: str) -> int:
    """Return the millisecond in which an id or bare ULID was made. Raises `UserError` for anything else."""
    body = identifier[-_TEXT_LENGTH:]
    if len(body) != _TEXT_LENGTH or body[0] > "7" or any(character not in _VALUE for character in body):
        raise UserError(f"id {identifier!r}: it does not end in a ULID of 26 characters")
    number = 0
    for character in body:
        number = number << 5 | _VALUE[character]
    return number >> _RANDOM_BITS


def _encode(number: int) -> str:
    # Two characters at a time: ids are made several times for each step of a workflow.
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
