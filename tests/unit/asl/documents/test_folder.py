"""Definitions of a folder: files of their own, and machines in templates with their substitutions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headgate.asl.documents.folder import FoundDefinition, find_definitions

PASS: dict[str, Any] = {"StartAt": "A", "States": {"A": {"Type": "Pass", "Result": "${Table}", "End": True}}}
TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Inline:
    Type: AWS::Serverless::StateMachine
    Properties:
      DefinitionSubstitutions: {Table: !Ref Orders}
      Definition:
        StartAt: A
        States:
          A: {Type: Pass, Result: '${Table}', End: true}
  Text:
    Type: AWS::StepFunctions::StateMachine
    Properties:
      DefinitionString: !Sub |
        {"StartAt": "A", "States": {"A": {"Type": "Pass", "Result": "${Orders}", "End": true}}}
  File:
    Type: AWS::Serverless::StateMachine
    Properties:
      DefinitionUri: machines/work.asl.json
      DefinitionSubstitutions:
        Table: !GetAtt Orders.Arn
  Gone:
    Type: AWS::Serverless::StateMachine
    Properties: {DefinitionUri: machines/gone.asl.json}
  Elsewhere:
    Type: AWS::Serverless::StateMachine
    Properties: {DefinitionUri: {Bucket: b, Key: k}}
  Orders: {Type: AWS::DynamoDB::Table}
  # The tools of CloudFormation take the last of two.
  Orders: {Type: AWS::DynamoDB::Table}
"""


def _write(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def _result(found: FoundDefinition) -> Any:
    return found.error.message if found.error is not None else found.definition["States"]["A"].get("Result")


def test_find__template__its_machines_with_their_substitutions(tmp_path: Path) -> None:
    _write(tmp_path, "app/template.yaml", TEMPLATE)
    _write(tmp_path, "app/machines/work.asl.json", PASS)

    found = find_definitions(tmp_path, {"Orders": "orders"})

    assert {each.name: _result(each) for each in found.definitions} == {
        "app/machines/work.asl.json": "${Orders.Arn}",
        "app/template.yaml#Gone": "DefinitionUri machines/gone.asl.json: there is no such definition in the folder",
        "app/template.yaml#Inline": "orders",
        "app/template.yaml#Text": "orders",
    }
    assert (found.used, found.variables) == ({"Orders"}, {"Orders", "Orders.Arn"})


def test_find__json_template_with_functions__is_read(tmp_path: Path) -> None:
    text = {
        "Fn::Join": ["", ['{"StartAt":"A","States":{"A":{"Type":"Pass","Result":"', {"Ref": "T"}, '","End":true}}}']]
    }
    resources = {"M": {"Type": "AWS::StepFunctions::StateMachine", "Properties": {"DefinitionString": text}}}
    _write(tmp_path, "out.template.json", {"Resources": resources})

    (found,) = find_definitions(tmp_path, {}).definitions

    assert (found.name, _result(found)) == ("out.template.json#M", "${T}")


def test_find__files__only_those_that_hold_a_definition(tmp_path: Path) -> None:
    _write(tmp_path, "plain.json", PASS)
    _write(tmp_path, "written.yml", "StartAt: A\nStates: {A: {Type: Succeed}}")
    _write(tmp_path, "broken.asl.json", "{")
    _write(tmp_path, "templated.json", '{"StartAt": "A", "States": {"A": {"Type": "Wait", "Seconds": ${n}}}}')
    _write(tmp_path, "history.json", {"events": ["StartAt", "States"]})
    _write(tmp_path, "package.json", {"name": "x"})
    _write(tmp_path, "notes.txt", PASS)
    _write(tmp_path, ".hidden/machine.asl.json", PASS)
    _write(tmp_path, "node_modules/x/machine.asl.json", PASS)
    (tmp_path / "binary.asl.json").write_bytes(b"\xff\xfe")
    (tmp_path / "data.json").write_bytes(b"\xff\xfe")

    found = {each.name: each.error and each.error.message for each in find_definitions(tmp_path, {}).definitions}

    assert found.keys() == {"binary.asl.json", "broken.asl.json", "plain.json", "templated.json", "written.yml"}
    assert found["binary.asl.json"] == "the file is not UTF-8 text; fix its encoding"
    assert (found["plain.json"], found["written.yml"]) == (None, None)
    assert "no value is given for ${n}" in str(found["templated.json"])
