"""Item errors: every failed item is found again, also those beyond the errors that a row stores in full."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from headgate.fanout.model.item_errors import (
    ERRORS_MAX,
    FURTHER_ERRORS_MAX,
    error_texts,
    item_errors,
    parsed_error,
    stored_errors,
)
from headgate.fanout.model.states import Disposition
from tests.unit.fanout.made_rows import made_chunk


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ValueError: bad: item", ("ValueError", "bad: item")),
        ("pkg.Bad: ", ("pkg.Bad", "")),
        ("TIMEOUT: longer than 2 s", ("TIMEOUT", "longer than 2 s")),
        ("KeyError", ("KeyError", "")),
        ("no such file: x.csv", ("Error", "no such file: x.csv")),
        ("", ("Error", "")),
    ],
)
def test_parsed__each_form__has_class_and_message(text: str, error: tuple[str, str]) -> None:
    assert parsed_error(text) == error


def test_stored__more_items_than_errors__each_is_found_again() -> None:
    errors = {index: f"{'ValueError' if index % 2 else 'KeyError'}: bad {index}" for index in range(2 * ERRORS_MAX)}

    chunk = replace(made_chunk(0, Disposition.DONE), **stored_errors(errors))

    assert len(msgspec.json.decode(chunk.item_errors or "")) == ERRORS_MAX
    assert error_texts(chunk).keys() == errors.keys()
    by_class = [each.error_class for each in item_errors(chunk)]
    assert (by_class.count("ValueError"), by_class.count("KeyError")) == (ERRORS_MAX, ERRORS_MAX)
    assert len({each.fingerprint for each in item_errors(chunk)}) == 2


def test_stored__more_kinds_of_errors_than_fit__keep_their_class() -> None:
    names = ["".join(chr(ord("a") + int(digit)) for digit in str(number)) for number in range(3 * FURTHER_ERRORS_MAX)]
    errors = {ERRORS_MAX + place: f"ValueError: {name}" for place, name in enumerate(names)}
    errors |= dict.fromkeys(range(ERRORS_MAX), "OSError: disk full")

    chunk = replace(made_chunk(0, Disposition.DONE), **stored_errors(errors))

    assert error_texts(chunk).keys() == errors.keys()
    assert [each.error_class for each in item_errors(chunk)].count("ValueError") == len(names)
    further = msgspec.json.decode(chunk.further_item_errors or "")
    assert len(further) == FURTHER_ERRORS_MAX + 1


def test_stored__no_errors__leaves_nothing_in_the_row() -> None:
    assert stored_errors({}) == {"item_errors": None, "further_item_errors": None}
