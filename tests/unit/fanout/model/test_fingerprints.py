"""Fingerprints: errors of one kind have one name, and errors of different kinds have different ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.fanout.model.fingerprints import fingerprint, generalised


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("spectrum 17 did not converge", "spectrum 4200 did not converge"),
        ("took 1.5e-3 s", "took 27 s"),
        ("no such key: 'chunks/a/b.npz'", "no such key: 'chunks/c/d.npz'"),
        ("cannot open /data/run-1/chunk-5.npz", "cannot open /data/run-2/chunk-9999.npz"),
        ("request 7f9c24e8-3b1a-4d6f-9e2b-1c5d8a7b6e4f failed", "request 00000000-0000-0000-0000-000000000000 failed"),
        ("object at 0x7f3a2c", "object at 0xdeadbeef01"),
        ("etag 0123456789abcdef0123 differs", "etag fedcba98765432100123 differs"),
        ("bad   value\n5", "bad value 6"),
        ('column "flux" is missing', 'column "beta" is missing'),
    ],
)
def test_fingerprint__the_same_but_for_numbers_ids_and_quotes__is_one(one: str, other: str) -> None:
    assert fingerprint("ValueError", one) == fingerprint("ValueError", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ValueError", "did not converge"), ("KeyError", "did not converge")),
        (("ValueError", "did not converge"), ("ValueError", "did converge")),
        (("TIMEOUT", "it took longer"), ("OOM", "it took longer")),
        (("ValueError", ""), ("ValueError", "x")),
    ],
)
def test_fingerprint__another_class_or_sentence__is_another(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert fingerprint(*one) != fingerprint(*other)


@given(st.text(max_size=2000), st.text(max_size=50))
def test_fingerprint__of_any_text__is_twelve_hexadecimal_digits_and_stable(message: str, error_class: str) -> None:
    found = fingerprint(error_class, message)

    assert re.fullmatch(r"[0-9a-f]{12}", found)
    assert found == fingerprint(error_class, message)


def test_fingerprint__of_text_that_is_half_a_character__receives_all_the_same() -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", fingerprint("OSError", "no such file: caf\udce9"))


def test_fingerprint__is_stored__and_never_changes() -> None:
    assert fingerprint("ValueError", "spectrum 17 of 'grs' did not converge") == "c9f823bcb0ee"


def test_generalised__a_very_long_message__is_bounded_and_quick() -> None:
    assert len(generalised("a1" * 1_000_000)) < 5_000
    assert len(generalised("'" * 1_000_000)) < 5_000
    assert len(generalised("/" * 500_000 + "a/" * 500_000)) < 5_000


@given(st.text(max_size=300))
def test_generalised__of_any_text__has_no_digit_and_no_run_of_spaces(message: str) -> None:
    found = generalised(message)

    assert not re.search(r"[0-9]{2,}", found.replace("<n>", ""))
    assert "  " not in found


def test_fingerprint__long_messages_that_differ_in_numbers__are_one_error() -> None:
    def message(number: int) -> str:
        return f"row {number}: " + "the fit did not converge; " * 18 + f"residual {number * 0.001} of {number}"

    assert len({fingerprint("ValueError", message(number)) for number in (7, 1_234, 9_876_543)}) == 1
