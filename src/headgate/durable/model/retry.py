"""Retry policy: whether a failed attempt is retried, and after which delay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import force_setattr

from headgate import typed_decode
from headgate.durable.model.duration import seconds
from headgate.durable.model.failures import ErrorInfo, class_name
from headgate.errors import UserError

if TYPE_CHECKING:
    from headgate.durable.model.duration import Duration

    _Span = Duration
    _Names = tuple[str | type[BaseException], ...]
else:
    # The JSON types. A caller may also pass a timedelta or an error class, which `__post_init__` converts.
    _Span = float | str
    _Names = tuple[str, ...]

ATTEMPTS_DEFAULT: Final = 10
_encoder: Final = msgspec.json.Encoder()


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often, and after which delays, failed work is retried.

    After construction, `first` and `most` are seconds and `never` has names, whatever was passed.
    Raises `UserError` for a value that is not allowed.
    """

    attempts: int = ATTEMPTS_DEFAULT
    """The number of attempts, including the first; 0 is no limit."""
    first: _Span = 1.0
    """The delay after the first failure."""
    factor: float = 2.0
    """The factor from each delay to the next."""
    most: _Span = 300.0
    """The longest delay."""
    jitter: float = 0.2
    """The random share of each delay, from 0 (none) to 1 (all)."""
    deaths: int = 0
    """Up to this many attempts are retried if their worker died, even beyond `attempts`."""
    never: _Names = ()
    """Error classes, or their names with or without the module, that are never retried.
    As with `except`, a class includes its subclasses."""

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 0:
            raise UserError(f"retry attempts {self.attempts!r}: use a whole number, or 0 for no limit")
        if type(self.deaths) is not int or self.deaths < 0:
            raise UserError(f"retry deaths {self.deaths!r}: use a whole number from 0")
        first = seconds(self.first, name="retry first")
        most = seconds(self.most, name="retry most")
        if first > most:
            raise UserError(f"retry first is {first:g} s, more than retry most ({most:g} s): raise `most` as well")
        _check_number("factor", self.factor, 1.0, 1000.0)
        _check_number("jitter", self.jitter, 0.0, 1.0)
        if first is not self.first:
            force_setattr(self, "first", first)
        if most is not self.most:
            force_setattr(self, "most", most)
        if self.never != ():
            force_setattr(self, "never", _names(self.never))

    def dump(self) -> str:
        """Return the policy as JSON text."""
        return _encoder.encode(self).decode()

    def delay_seconds(self, attempt: int, draw: float) -> float:
        """Return the delay after attempt number `attempt` (from 1) failed, for a random `draw` from [0, 1)."""
        first = seconds(self.first)
        most = seconds(self.most)
        try:
            delay = min(first * self.factor ** (attempt - 1), most)
        except OverflowError:
            delay = most if first else 0.0
        return delay * (1.0 - self.jitter * (1.0 - draw))

    def again(self, attempt: int, error: ErrorInfo) -> bool:
        """Whether to retry after attempt number `attempt` (from 1) failed with `error`."""
        if not error.retryable or (self.attempts and attempt >= self.attempts):
            return False
        return not self.never or not any(
            name in self.never or name.rpartition(".")[2] in self.never for name in error.class_names()
        )


def load_retry(text: str | None) -> Retry | None:
    """Return the policy that `Retry.dump` wrote."""
    return None if text is None else typed_decode.from_json(text, Retry)


def _check_number(name: str, value: object, least: float, most: float) -> None:
    if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
        raise UserError(f"retry {name} {value!r}: use a number from {least:g} to {most:g}")


def _names(never: object) -> tuple[str, ...]:
    if not isinstance(never, tuple | list | set | frozenset):
        raise UserError(f"retry never {never!r}: use a tuple of error classes or of their names")
    names = [_name(member) for member in never]
    return tuple(sorted(names) if isinstance(never, set | frozenset) else names)


def _name(error: object) -> str:
    if isinstance(error, type) and issubclass(error, BaseException):
        return class_name(error)
    if isinstance(error, str) and error and all(map(_is_part, error.split("."))):
        return str(error)
    raise UserError(f"retry never {error!r}: use an error class or its name, such as ValueError or 'shop.CardDeclined'")


def _is_part(part: str) -> bool:
    # A class defined inside a function has such a part in its qualified name.
    return part.isidentifier() or part == "<locals>"
