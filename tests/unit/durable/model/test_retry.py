"""When a failed attempt is followed by another one, and how long after."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.durable.model.failures import ErrorInfo, NonRetryable, describe
from headgate.durable.model.retry import Retry
from headgate.errors import UserError


class CardDeclined(Exception):
    pass


class CardStolen(CardDeclined):
    pass


def _error(error: BaseException | None = None) -> ErrorInfo:
    return describe(error or RuntimeError("no"))


def test_retry__durations_as_text__are_kept_as_seconds() -> None:
    retry = Retry(first="250ms", most=timedelta(minutes=2))
    assert (retry.first, retry.most) == (0.25, 120.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attempts": -1}, "retry attempts -1"),
        ({"attempts": True}, "retry attempts True"),
        ({"attempts": 2.0}, "retry attempts 2.0"),
        ({"attempts": "3"}, "retry attempts '3'"),
        ({"first": "soon"}, "retry first 'soon' is not a duration"),
        ({"first": -1}, "retry first -1 is not a duration"),
        ({"most": None}, "retry most None is not a duration"),
        ({"first": "10m"}, r"retry first is 600 s, more than retry most \(300 s\)"),
        ({"factor": 0.5}, "retry factor 0.5: use a number from 1 to 1000"),
        ({"factor": float("nan")}, "retry factor nan"),
        ({"factor": "2"}, "retry factor '2'"),
        ({"jitter": 1.1}, "retry jitter 1.1: use a number from 0 to 1"),
        ({"jitter": True}, "retry jitter True"),
        ({"never": "ValueError"}, "retry never 'ValueError': use a tuple"),
        ({"never": ValueError}, "retry never <class 'ValueError'>: use a tuple"),
        ({"never": (3,)}, "retry never 3: use an error class or its name"),
        ({"never": (int,)}, "retry never <class 'int'>: use an error class"),
        ({"never": ("",)}, "retry never ''"),
        ({"never": ("a b",)}, "retry never 'a b'"),
    ],
)
def test_retry__value_not_allowed__is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Retry(**wrong)


def test_delay__without_jitter__grows_to_the_most() -> None:
    retry = Retry(first="1s", factor=2, most="10s", jitter=0)
    assert [retry.delay_seconds(attempt, 0.7) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_delay__after_very_many_attempts__is_the_most() -> None:
    assert Retry(jitter=0).delay_seconds(1_000_000, 0.0) == 300
    assert Retry(jitter=0, factor=1.5).delay_seconds(10**9, 0.0) == 300
    assert Retry(first=0).delay_seconds(10**6, 0.5) == 0


@given(
    attempt=st.integers(1, 100_000),
    draw=st.floats(0, 1, exclude_max=True),
    jitter=st.floats(0, 1),
    first=st.floats(0, 300),
    factor=st.floats(1, 1000),
)
def test_delay__any_policy__is_the_random_share_below_the_full_delay(
    attempt: int, draw: float, jitter: float, first: float, factor: float
) -> None:
    full = Retry(first=first, factor=factor, jitter=0.0).delay_seconds(attempt, draw)
    delay = Retry(first=first, factor=factor, jitter=jitter).delay_seconds(attempt, draw)
    assert 0 <= full <= 300
    assert full * (1 - jitter) - 1e-9 <= delay <= full + 1e-9


def test_delay__full_jitter__spreads_over_all_of_it() -> None:
    retry = Retry(first=8, jitter=1.0)
    assert retry.delay_seconds(1, 0.0) == 0
    assert retry.delay_seconds(1, 0.5) == 4
    assert retry.delay_seconds(1, 0.999) == pytest.approx(7.992)


def test_again__attempts__are_counted_with_the_first() -> None:
    assert [Retry(attempts=3).again(attempt, _error()) for attempt in (1, 2, 3, 4)] == [True, True, False, False]
    assert not Retry(attempts=1).again(1, _error())


def test_again__without_limit__goes_on() -> None:
    assert Retry(attempts=0).again(10**9, _error())


def test_again__non_retryable__is_the_end() -> None:
    assert not Retry(attempts=0).again(1, _error(NonRetryable("declined")))


@pytest.mark.parametrize(
    "never",
    [
        ("CardStolen",),
        (f"{__name__}.CardStolen",),
        (CardStolen,),
        (CardDeclined,),
        ("CardDeclined",),
        (f"{__name__}.CardDeclined",),
        ("KeyError", CardStolen),
        [CardStolen],
        frozenset({CardStolen, KeyError}),
    ],
)
def test_again__class_that_is_never_retried__is_the_end_for_its_subclasses_too(never: Any) -> None:
    assert not Retry(never=never).again(1, _error(CardStolen()))


@pytest.mark.parametrize("never", [("Card",), ("elsewhere.CardDeclined",), (CardStolen,), (ValueError,), ("Declined",)])
def test_again__another_class__goes_on(never: Any) -> None:
    assert Retry(never=never).again(1, _error(CardDeclined()))


def test_again__builtin_class__matches_by_class_and_by_base() -> None:
    assert not Retry(never=(OSError,)).again(1, _error(FileNotFoundError(2, "gone")))
    assert not Retry(never=("LookupError",)).again(1, _error(KeyError("x")))
    assert Retry(never=(OSError,)).again(1, _error(ValueError()))


def test_again__error_from_elsewhere_without_a_module__matches_by_bare_name() -> None:
    assert not Retry(never=("shop.Declined", "Declined")).again(1, ErrorInfo(type="Declined", message=""))


def test_retry__as_json__comes_back_equal() -> None:
    class Local(Exception):
        pass

    retry = Retry(attempts=3, first="2s", most="1h", factor=3, jitter=0.5, never=(CardDeclined, KeyError, Local))
    assert msgspec.json.decode(msgspec.json.encode(retry), type=Retry) == retry
    assert msgspec.json.encode(Retry()) == b"{}"
    assert msgspec.json.decode(b'{"first":"5s","most":"1m"}', type=Retry) == Retry(first=5, most=60)


def test_retry__bad_json__is_refused_like_a_bad_call() -> None:
    with pytest.raises(UserError, match="retry attempts -1"):
        msgspec.json.decode(b'{"attempts":-1}', type=Retry)


def test_retry__once_made__cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Retry().attempts = 3  # type: ignore[misc]
