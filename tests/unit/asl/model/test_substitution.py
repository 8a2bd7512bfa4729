"""Substitution of `${name}`, as Terraform's templatefile does it."""

from __future__ import annotations

import pytest

from headgate.asl.model.substitution import Substitution, unresolved


@pytest.mark.parametrize(
    ("text", "expected", "missing"),
    [
        pytest.param('{"Resource": "${fn}"}', '{"Resource": "arn:x"}', set(), id="given"),
        pytest.param("${ fn }", "arn:x", set(), id="spaces-inside"),
        pytest.param("${fn}/${fn}", "arn:x/arn:x", set(), id="twice"),
        pytest.param("${other}", "${other}", {"other"}, id="not-given-stays"),
        pytest.param("${a}${b}${a}", "${a}${b}${a}", {"a", "b"}, id="each-missing-once"),
        pytest.param("$${fn}", "${fn}", set(), id="escaped"),
        pytest.param("$${fn} ${fn}", "${fn} arn:x", set(), id="escaped-beside-given"),
        pytest.param("$$.Task.Token $.a $name {% $x %}", "$$.Task.Token $.a $name {% $x %}", set(), id="paths-stay"),
        pytest.param("${1x} ${} ${a b}", "${1x} ${} ${a b}", set(), id="not-names"),
        pytest.param("${a.b} ${AWS::Region}", "dotted eu-west-1", set(), id="names-of-cloudformation"),
        pytest.param("${nested}", "${fn}", set(), id="what-is-put-in-is-not-looked-at-again"),
    ],
)
def test_substitute__text__given_names_replaced_others_kept(text: str, expected: str, missing: set[str]) -> None:
    substitution = Substitution({"fn": "arn:x", "nested": "${fn}", "a.b": "dotted", "AWS::Region": "eu-west-1"})

    assert (substitution.fill(text), substitution.missing) == (expected, missing)


def test_unused__variables_that_no_text_had__are_named() -> None:
    substitution = Substitution({"fn": "arn:x", "a.b": "y", "c": "z"})

    substitution.fill("${a.b} ${other}")

    assert (substitution.unused, substitution.used) == (["c", "fn"], {"a.b"})


def test_unresolved__placeholders_among_paths__names_of_placeholders_alone() -> None:
    assert unresolved("$.a ${one} {% ${'k': 1} %} ${two.three}") == ["one", "two.three"]
