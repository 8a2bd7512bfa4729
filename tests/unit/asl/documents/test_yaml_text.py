"""YAML definitions: the values, the functions of CloudFormation, and what is refused with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from headgate.asl.documents.definition_text import read_definition
from headgate.asl.documents.yaml_text import load_yaml
from headgate.errors import DefinitionError

MACHINE = """
Comment: works the orders
StartAt: Work
States:
  Work:
    Type: Task
    Resource: !GetAtt WorkFunction.Arn
    Next: No
  No: {Type: Wait, Seconds: 5, End: true}
"""


def _read(text: str) -> Any:
    return load_yaml(text, lambda filled: filled)


def test_read__machine_in_yaml__is_the_document_of_its_json() -> None:
    assert read_definition(MACHINE, {}) == {
        "Comment": "works the orders",
        "StartAt": "Work",
        "States": {
            "Work": {"Type": "Task", "Resource": "${WorkFunction.Arn}", "Next": "No"},
            "No": {"Type": "Wait", "Seconds": 5, "End": True},
        },
    }


def test_read__variable_of_a_function_and_of_the_text__are_filled_in() -> None:
    text = MACHINE.replace("Seconds: 5", "Seconds: ${pause}")

    read = read_definition(text, {"WorkFunction.Arn": "work", "pause": "7"})

    assert (read["States"]["Work"]["Resource"], read["States"]["No"]["Seconds"]) == ("work", 7)


def test_read__variable_that_is_not_there__is_refused_with_those_that_are() -> None:
    with pytest.raises(DefinitionError, match=r"'work': there is no \$\{work\} in the definition; it has \$\{WorkF"):
        read_definition(MACHINE, {"work": "x"})
    with pytest.raises(DefinitionError, match="it has no variables"):
        read_definition("{}", {"a.b": "x"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: yes", "yes"), ("a: off", "off"), ("a: True", True), ("a: ~", None), ("a:", None), ("a: '1'", "1"),
        ("a: 010", 10), ("a: 0x1f", 31), ("a: -3", -3), ("a: 1.5e3", 1500.0), ("a: .5", 0.5), ("a: 1.0", 1.0),
        ("a: 2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"), ("a: 12:30:00", "12:30:00"), ("a: !!str 5", "5"),
        ("a: !!int 5", 5), ("a: |\n  x\n  y\n", "x\ny\n"), ("a: &anchor 5", 5), ("a: <<", "<<"), ("a: ! 5", "5"),
    ],
)  # fmt: skip
def test_load__scalar__has_the_type_of_yaml_1_2(text: str, value: Any) -> None:
    found = _read(text)["a"]

    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!Ref Table", "${Table}"),
        ("!GetAtt [Work, Arn]", "${Work.Arn}"),
        ("!Sub 'arn:${AWS::Partition}:sns'", "arn:${AWS::Partition}:sns"),
        ("!Sub ['${A}-${B}', {A: x}]", "x-${B}"),
        ("!Sub 'keep ${!this}'", "keep ${this}"),
        ("!Join ['/', [a, !Ref B, 3]]", "a/${B}/3"),
        ("!ImportValue shared-topic", "${shared-topic}"),
        ("!FindInMap [Sizes, eu, small]", "${Sizes.eu.small}"),
        ("!If [IsLive, 5, 6]", 5),
        ("!Select [0, [a]]", "${Fn::Select}"),
        ("!Sub ['${A}', {A: {'Fn::GetAtt': [Work, Arn]}}]", "${Work.Arn}"),
    ],
)
def test_load__function_of_cloudformation__is_text_with_placeholders(text: str, value: Any) -> None:
    assert _read(f"a: {text}")["a"] == value


def test_read__functions_as_objects__in_json_and_in_yaml() -> None:
    states = {
        "A": {"Type": "Task", "Resource": {"Fn::GetAtt": ["Work", "Arn"]}, "Next": "B"},
        "B": {"Type": "Task", "Resource": {"Ref": "Other"}, "Parameters": {"Ref": "data", "t": {"Fn::Sub": "${T}/y"}}},
    }
    definition = {"StartAt": "A", "States": states}

    read = [read_definition(text, {"T": "x"}) for text in (json.dumps(definition), yaml.safe_dump(definition))]

    assert read[0] == read[1]
    assert read[0]["States"]["A"]["Resource"] == "${Work.Arn}"
    # A member called Ref is data, except in the place of a Resource.
    assert read[0]["States"]["B"]["Parameters"] == {"Ref": "data", "t": "x/y"}
    assert read[0]["States"]["B"]["Resource"] == "${Other}"


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("a: 1\na: 2", "'a' twice in one object: line 2, column 1"),
        ("a: &x {b: 1}\nc: *x", "an alias: line 2, column 4"),
        ("a: {<<: {b: 1}}", "a merge: line 1, column 5"),
        ("a: .inf", ".inf, which is not JSON"),
        ("a: 1e999", "1e999, which is not JSON"),
        ("a: !!binary aGk=", "the tag tag:yaml.org,2002:binary"),
        ("a: !!int x", "the tag tag:yaml.org,2002:int on 'x'"),
        ("a: !!set {x}", "the tag tag:yaml.org,2002:set"),
        ("? [a]\n: 1", "a collection as a name"),
        ("a: 1\n---\nb: 2", "2 YAML documents"),
        ("a: [1", "neither JSON nor YAML: line 2"),
        ("[" * 2_000, "more than 1000 levels"),
        ("a: " + "9" * 5_000, "a number that cannot be read"),
    ],
)
def test_load__what_json_cannot_hold_or_is_not_yaml__is_refused_with_its_line(text: str, fact: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        _read(text)

    assert fact in refused.value.message


def test_load__duplicate_that_is_allowed__last_counts() -> None:
    assert load_yaml("a: 1\na: 2", lambda filled: filled, allow_duplicates=True) == {"a": 2}
