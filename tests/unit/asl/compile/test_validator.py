"""Validator: every rule with its path and code, and no problem for valid definitions."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from headgate.asl.compile.severities import Severity, Target
from headgate.asl.compile.validator import ProblemCode, findings, load, problems
from headgate.asl.tasks.local_tasks import LocalTasks
from headgate.asl.tasks.resource_map import MappedResource, ResourceMap
from headgate.errors import DefinitionError

Json = Any
_EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "asl").glob("*.asl.json"))


def _task(**fields: Json) -> Json:
    return {"Type": "Task", "Resource": "work", "End": True} | fields


def _one(state: Json, **fields: Json) -> Json:
    return {"StartAt": "A", "States": {"A": state}} | fields


def _jsonata(state: Json) -> Json:
    return _one(state, QueryLanguage="JSONata")


def _machine(states: dict[str, Json]) -> Json:
    return {"StartAt": next(iter(states)), "States": states}


def _map(processor: Json | None = None, **fields: Json) -> Json:
    return _one({"Type": "Map", "ItemProcessor": processor or _machine({"B": _task()}), "End": True} | fields)


def _distributed(config: Json | None = None, state: str = "B", **fields: Json) -> Json:
    mode = config or {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"}
    return _map({**_machine({state: _task()}), "ProcessorConfig": mode}, **fields)


def _express(state: Json) -> Json:
    inner = _machine({"B": {"Type": "Parallel", "Branches": [_machine({"C": state})], "End": True}})
    return _map({**inner, "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS"}})


def _retry(**fields: Json) -> Json:
    return _one(_task(Retry=[{"ErrorEquals": ["X"]} | fields]))


def _catch(*entries: Json) -> Json:
    return {"StartAt": "A", "States": {"A": _task(Catch=list(entries)), "B": {"Type": "Fail"}}}


def _choice(*rules: Json, **fields: Json) -> Json:
    states = {"A": {"Type": "Choice", "Choices": list(rules), "Default": "B"} | fields, "B": {"Type": "Succeed"}}
    return {"StartAt": "A", "States": states}


def _wait(**fields: Json) -> Json:
    return _one({"Type": "Wait", "End": True} | fields)


def _found(definition: Json) -> list[tuple[str, str]]:
    found = findings(definition, tasks=LocalTasks())
    return [(each.path, each.code.value) for each in found if each.severity is Severity.ERROR]


def _warned(definition: Json) -> list[tuple[str, str]]:
    return [(each.path, each.code.value) for each in findings(definition) if each.severity is Severity.WARNING]


_A = "$.States.A"
_GET = "arn:aws:states:::s3:getObject"
_PUT = "arn:aws:states:::s3:putObject"
_TO_B = {"ErrorEquals": ["X"], "Next": "B"}
_PRESENT = {"Variable": "$.x", "IsPresent": True}


@pytest.mark.parametrize(
    ("definition", "path", "code"),
    [
        # Shapes.
        pytest.param([], "$", "WRONG_TYPE", id="list"),
        pytest.param({"StartAt": "A", "States": []}, "$.States", "WRONG_TYPE", id="states-list"),
        pytest.param({"StartAt": "A", "States": {"A": 1}}, _A, "WRONG_TYPE", id="state-number"),
        pytest.param(_one(_task(), TimeoutSeconds="60"), "$.TimeoutSeconds", "WRONG_TYPE", id="time-out-text"),
        pytest.param(_one(_task(), TimeoutSeconds=0), "$.TimeoutSeconds", "OUT_OF_RANGE", id="time-out-zero"),
        pytest.param(_one(_task(), Version="2.0"), "$.Version", "UNKNOWN_VALUE", id="version"),
        pytest.param(_one(_task(), Startat="A"), "$.Startat", "UNKNOWN_FIELD", id="machine-field"),
        pytest.param(_one(_task(TimeoutSecond=1)), f"{_A}.TimeoutSecond", "UNKNOWN_FIELD", id="state-field"),
        pytest.param(_one(_task(End="yes", Next="A")), f"{_A}.End", "WRONG_TYPE", id="end-text"),
        pytest.param(_one({"Type": "Taks", "End": True}), f"{_A}.Type", "UNKNOWN_VALUE", id="type"),
        pytest.param(_one({"End": True}), _A, "MISSING_FIELD", id="no-type"),
        pytest.param(_one({"Type": "Task", "End": True}), _A, "MISSING_FIELD", id="no-resource"),
        pytest.param(_one(_task(Resource="a b")), f"{_A}.Resource", "BAD_RESOURCE", id="resource"),
        # Languages.
        pytest.param(_one(_task(QueryLanguage="SQL")), f"{_A}.QueryLanguage", "UNKNOWN_VALUE", id="language"),
        pytest.param(_jsonata(_task(InputPath="$")), f"{_A}.InputPath", "FIELD_NOT_IN_LANGUAGE", id="path-in-jsonata"),
        pytest.param(_one(_task(Arguments={})), f"{_A}.Arguments", "FIELD_NOT_IN_LANGUAGE", id="arguments-in-jsonpath"),
        pytest.param(
            _one(_task(QueryLanguage="JSONata", ResultPath="$")),
            f"{_A}.ResultPath",
            "FIELD_NOT_IN_LANGUAGE",
            id="language-of-the-state",
        ),
        pytest.param(_one({"Type": "Pass", "End": True, "Retry": []}), f"{_A}.Retry", "FIELD_NOT_IN_STATE", id="retry"),
        pytest.param(_one({"Type": "Succeed", "Assign": {}}), f"{_A}.Assign", "FIELD_NOT_IN_STATE", id="assign"),
        pytest.param(_one({"Type": "Succeed", "Next": "A"}), f"{_A}.Next", "FIELD_NOT_IN_STATE", id="succeed-next"),
        # Expressions.
        pytest.param(_one(_task(InputPath="x")), f"{_A}.InputPath", "BAD_PATH", id="input-path"),
        pytest.param(_one(_task(OutputPath="$.a[")), f"{_A}.OutputPath", "BAD_PATH", id="output-path"),
        pytest.param(_one(_task(InputPath=3)), f"{_A}.InputPath", "WRONG_TYPE", id="path-number"),
        pytest.param(_one(_task(ResultPath="$.a[*]")), f"{_A}.ResultPath", "BAD_REFERENCE_PATH", id="result-path"),
        pytest.param(_one(_task(ResultPath="$$.x")), f"{_A}.ResultPath", "BAD_REFERENCE_PATH", id="result-in-context"),
        pytest.param(_one(_task(ResultPath="$v")), f"{_A}.ResultPath", "BAD_REFERENCE_PATH", id="result-in-variable"),
        pytest.param(
            _one(_task(Parameters={"a": [{"b.$": "nope"}]})),
            f"{_A}.Parameters.a[0]['b.$']",
            "BAD_TEMPLATE",
            id="template",
        ),
        pytest.param(
            _one(_task(ResultSelector={"a.$": "States.Nope()"})),
            f"{_A}.ResultSelector['a.$']",
            "BAD_TEMPLATE",
            id="intrinsic",
        ),
        pytest.param(_one(_task(Parameters={"a": 1, "a.$": "$.a"})), f"{_A}.Parameters", "BAD_TEMPLATE", id="twins"),
        pytest.param(
            _jsonata(_task(Arguments={"a": ["{% 1 + %}"]})), f"{_A}.Arguments.a[0]", "BAD_JSONATA", id="jsonata"
        ),
        pytest.param(_jsonata(_task(Output="{% ( %}")), f"{_A}.Output", "BAD_JSONATA", id="jsonata-whole"),
        pytest.param(
            _one({"Type": "Fail", "ErrorPath": "States.Nope()"}), f"{_A}.ErrorPath", "BAD_PATH", id="error-path"
        ),
        # Paths that name one place alone.
        pytest.param(
            _one(_task(TimeoutSecondsPath="$.t[*]")),
            f"{_A}.TimeoutSecondsPath",
            "BAD_REFERENCE_PATH",
            id="time-out-many",
        ),
        pytest.param(
            _one(_task(HeartbeatSecondsPath="$..t")), f"{_A}.HeartbeatSecondsPath", "BAD_REFERENCE_PATH", id="beat-many"
        ),
        pytest.param(_wait(SecondsPath="$.s[0:2]"), f"{_A}.SecondsPath", "BAD_REFERENCE_PATH", id="seconds-many"),
        pytest.param(_wait(SecondsPath="s"), f"{_A}.SecondsPath", "BAD_PATH", id="seconds-no-path"),
        pytest.param(
            _wait(TimestampPath="$.t[?(@.a > 1)]"), f"{_A}.TimestampPath", "BAD_REFERENCE_PATH", id="timestamp-many"
        ),
        pytest.param(_map(ItemsPath="$.orders[*].lines"), f"{_A}.ItemsPath", "BAD_REFERENCE_PATH", id="items-many"),
        pytest.param(
            _map(MaxConcurrencyPath="$$..c"), f"{_A}.MaxConcurrencyPath", "BAD_REFERENCE_PATH", id="concurrency-many"
        ),
        pytest.param(
            _distributed(ToleratedFailureCountPath="$v[*]"),
            f"{_A}.ToleratedFailureCountPath",
            "BAD_REFERENCE_PATH",
            id="tolerated-many",
        ),
        pytest.param(
            _distributed(ItemBatcher={"MaxItemsPerBatchPath": "$.n[*]"}),
            f"{_A}.ItemBatcher.MaxItemsPerBatchPath",
            "BAD_REFERENCE_PATH",
            id="batch-many",
        ),
        pytest.param(
            _distributed(ItemReader={"Resource": _GET, "ReaderConfig": {"MaxItemsPath": "$.n[*]"}}),
            f"{_A}.ItemReader.ReaderConfig.MaxItemsPath",
            "BAD_REFERENCE_PATH",
            id="reader-many",
        ),
        pytest.param(
            _one({"Type": "Fail", "CausePath": "$.errors[*]"}), f"{_A}.CausePath", "BAD_REFERENCE_PATH", id="cause-many"
        ),
        pytest.param(
            _choice({"Not": {"Variable": "$.x[*]", "IsNull": True}, "Next": "B"}),
            f"{_A}.Choices[0].Not.Variable",
            "BAD_REFERENCE_PATH",
            id="variable-many",
        ),
        pytest.param(
            _choice({"Variable": "$.x", "StringEqualsPath": "$..y", "Next": "B"}),
            f"{_A}.Choices[0].StringEqualsPath",
            "BAD_REFERENCE_PATH",
            id="operand-many",
        ),
        # What can be called.
        pytest.param(
            _one(_task(Resource="arn:aws:states:::sns:publsh")), f"{_A}.Resource", "BAD_RESOURCE", id="action"
        ),
        pytest.param(
            _one(_task(Resource="arn:aws:states:::aws-sdk:s3:getObject")),
            f"{_A}.Resource",
            "BAD_RESOURCE",
            id="service",
        ),
        pytest.param(
            _distributed(ItemReader={"Resource": _PUT}),
            f"{_A}.ItemReader.Resource",
            "BAD_RESOURCE",
            id="reader-action",
        ),
        pytest.param(
            _distributed(ResultWriter={"Resource": _GET, "Parameters": {}}),
            f"{_A}.ResultWriter.Resource",
            "BAD_RESOURCE",
            id="writer-action",
        ),
        *(
            pytest.param(
                _express(_task(Resource=resource)),
                f"{_A}.ItemProcessor.States.B.Branches[0].States.C.Resource",
                "NOT_IN_EXPRESS",
                id=f"express-{resource}",
            )
            for resource in (
                "work.waitForTaskToken",
                "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
                "machine:other.sync",
                "fanout:other.sync:2",
                "arn:aws:states:us-east-1:1:activity:work",
            )
        ),
        pytest.param(
            _express(_distributed(state="D")["States"]["A"]),
            f"{_A}.ItemProcessor.States.B.Branches[0].States.C.ItemProcessor.ProcessorConfig.Mode",
            "NOT_IN_EXPRESS",
            id="express-map",
        ),
        # Ends.
        pytest.param(_one(_task(Next="A")), _A, "CONFLICTING_FIELDS", id="next-and-end"),
        pytest.param(_one(_task(End=False)), _A, "MISSING_FIELD", id="neither-next-nor-end"),
        # Times.
        pytest.param(
            _one(_task(TimeoutSeconds=5, HeartbeatSeconds=5)), f"{_A}.HeartbeatSeconds", "OUT_OF_RANGE", id="beat"
        ),
        pytest.param(_one(_task(TimeoutSeconds=1.5)), f"{_A}.TimeoutSeconds", "WRONG_TYPE", id="time-out-fraction"),
        pytest.param(_one(_task(TimeoutSeconds=True)), f"{_A}.TimeoutSeconds", "WRONG_TYPE", id="time-out-boolean"),
        pytest.param(
            _one(_task(TimeoutSeconds=5, TimeoutSecondsPath="$.t")), _A, "CONFLICTING_FIELDS", id="time-out-twice"
        ),
        pytest.param(
            _one(_task(TimeoutSeconds="{% 5 %}")), f"{_A}.TimeoutSeconds", "WRONG_TYPE", id="jsonata-in-jsonpath"
        ),
        pytest.param(_jsonata(_task(TimeoutSeconds="5")), f"{_A}.TimeoutSeconds", "WRONG_TYPE", id="text-in-jsonata"),
        pytest.param(_wait(), _A, "MISSING_FIELD", id="wait-for-nothing"),
        pytest.param(_wait(Seconds=1, TimestampPath="$.t"), _A, "CONFLICTING_FIELDS", id="wait-for-two"),
        pytest.param(_wait(Seconds=-1), f"{_A}.Seconds", "OUT_OF_RANGE", id="wait-negative"),
        pytest.param(_wait(Seconds=100_000_000), f"{_A}.Seconds", "OUT_OF_RANGE", id="wait-too-long"),
        pytest.param(_wait(Timestamp="2030-01-01 00:00:00Z"), f"{_A}.Timestamp", "BAD_TIMESTAMP", id="no-T"),
        pytest.param(_wait(Timestamp="2030-02-30T00:00:00Z"), f"{_A}.Timestamp", "BAD_TIMESTAMP", id="no-such-day"),
        pytest.param(_wait(Timestamp="2030-01-01T00:00:00"), f"{_A}.Timestamp", "BAD_TIMESTAMP", id="no-zone"),
        # Retry and Catch.
        pytest.param(_one(_task(Retry={})), f"{_A}.Retry", "WRONG_TYPE", id="retry-object"),
        pytest.param(_one(_task(Retry=[{}])), f"{_A}.Retry[0]", "MISSING_FIELD", id="retry-no-errors"),
        pytest.param(_retry(ErrorEquals=[]), f"{_A}.Retry[0].ErrorEquals", "EMPTY", id="retry-empty"),
        pytest.param(_retry(ErrorEquals="X"), f"{_A}.Retry[0].ErrorEquals", "WRONG_TYPE", id="retry-text"),
        pytest.param(_retry(ErrorEquals=[1]), f"{_A}.Retry[0].ErrorEquals[0]", "WRONG_TYPE", id="retry-number"),
        pytest.param(_retry(MaxAttempts=-1), f"{_A}.Retry[0].MaxAttempts", "OUT_OF_RANGE", id="attempts-negative"),
        pytest.param(_retry(MaxAttempts=100_000_000), f"{_A}.Retry[0].MaxAttempts", "OUT_OF_RANGE", id="attempts-many"),
        pytest.param(_retry(BackoffRate=0.5), f"{_A}.Retry[0].BackoffRate", "OUT_OF_RANGE", id="backoff"),
        pytest.param(_retry(IntervalSeconds=0), f"{_A}.Retry[0].IntervalSeconds", "OUT_OF_RANGE", id="interval"),
        pytest.param(_retry(MaxDelaySeconds=31_622_400), f"{_A}.Retry[0].MaxDelaySeconds", "OUT_OF_RANGE", id="delay"),
        pytest.param(
            _retry(IntervalSeconds=9, MaxDelaySeconds=9),
            f"{_A}.Retry[0].MaxDelaySeconds",
            "OUT_OF_RANGE",
            id="delay-short",
        ),
        pytest.param(_retry(JitterStrategy="full"), f"{_A}.Retry[0].JitterStrategy", "UNKNOWN_VALUE", id="jitter"),
        pytest.param(_retry(MaxAttempt=1), f"{_A}.Retry[0].MaxAttempt", "UNKNOWN_FIELD", id="retry-field"),
        pytest.param(
            _retry(ErrorEquals=["States.ALL", "X"]),
            f"{_A}.Retry[0].ErrorEquals",
            "MISPLACED_CATCH_ALL",
            id="all-not-alone",
        ),
        pytest.param(
            _catch({"ErrorEquals": ["States.ALL"], "Next": "B"}, _TO_B),
            f"{_A}.Catch[0].ErrorEquals",
            "MISPLACED_CATCH_ALL",
            id="all-not-last",
        ),
        pytest.param(_catch(_TO_B, {"ErrorEquals": ["Y"]}), f"{_A}.Catch[1]", "MISSING_FIELD", id="catch-no-next"),
        pytest.param(
            _catch(_TO_B, {**_TO_B, "Next": "C"}), f"{_A}.Catch[1].Next", "UNKNOWN_STATE", id="catch-dangling"
        ),
        pytest.param(
            _catch({**_TO_B, "ResultPath": "$..x"}), f"{_A}.Catch[0].ResultPath", "BAD_REFERENCE_PATH", id="catch-path"
        ),
        pytest.param(_catch({**_TO_B, "Output": 1}), f"{_A}.Catch[0].Output", "UNKNOWN_FIELD", id="catch-output"),
        # Choice.
        pytest.param(_choice({**_PRESENT, "Next": "B"}, End=True), f"{_A}.End", "FIELD_NOT_IN_STATE", id="choice-end"),
        pytest.param(_choice(), f"{_A}.Choices", "EMPTY", id="choice-of-nothing"),
        pytest.param(_choice(_PRESENT), f"{_A}.Choices[0]", "MISSING_FIELD", id="rule-no-next"),
        pytest.param(_choice({"Next": "B"}), f"{_A}.Choices[0]", "BAD_RULE", id="rule-no-condition"),
        pytest.param(
            _choice({"Variable": "$.x", "StringEquals": 1, "Next": "B"}), f"{_A}.Choices[0]", "BAD_RULE", id="rule-type"
        ),
        pytest.param(
            _choice({"Variable": "$.x", "StringEqual": "a", "Next": "B"}),
            f"{_A}.Choices[0].StringEqual",
            "UNKNOWN_FIELD",
            id="rule-operator",
        ),
        pytest.param(
            _choice({"And": [_PRESENT, {"Not": {"Variable": "x", "IsNull": True}}], "Next": "B"}),
            f"{_A}.Choices[0].And[1].Not",
            "BAD_RULE",
            id="rule-inside",
        ),
        pytest.param(
            _choice({"Not": {**_PRESENT, "Next": "B"}, "Next": "B"}),
            f"{_A}.Choices[0].Not.Next",
            "UNKNOWN_FIELD",
            id="next-inside",
        ),
        pytest.param(
            _choice({"Condition": True, "Next": "B"}), f"{_A}.Choices[0].Condition", "UNKNOWN_FIELD", id="jsonata-rule"
        ),
        pytest.param(
            _choice({**_PRESENT, "Next": "B"}, Default="C"), f"{_A}.Default", "UNKNOWN_STATE", id="default-dangling"
        ),
        pytest.param(
            _choice({"Next": "B", "Condition": "{% 1 = %}"}, QueryLanguage="JSONata"),
            f"{_A}.Choices[0].Condition",
            "BAD_JSONATA",
            id="condition",
        ),
        pytest.param(
            _choice({"Next": "B"}, QueryLanguage="JSONata"), f"{_A}.Choices[0]", "MISSING_FIELD", id="no-condition"
        ),
        # Parallel and Map.
        pytest.param(_one({"Type": "Parallel", "Branches": [], "End": True}), f"{_A}.Branches", "EMPTY", id="branches"),
        pytest.param(_one({"Type": "Parallel", "End": True}), _A, "MISSING_FIELD", id="no-branches"),
        pytest.param(
            _one({"Type": "Parallel", "Branches": [{"StartAt": "B"}], "End": True}),
            f"{_A}.Branches[0]",
            "MISSING_FIELD",
            id="branch-no-states",
        ),
        pytest.param(_one({"Type": "Map", "End": True}), _A, "MISSING_FIELD", id="no-processor"),
        pytest.param(_map(Iterator=_machine({"C": _task()})), _A, "CONFLICTING_FIELDS", id="two-processors"),
        pytest.param(_map(MaxConcurrency=-1), f"{_A}.MaxConcurrency", "OUT_OF_RANGE", id="concurrency"),
        pytest.param(
            _map(MaxConcurrency=1, MaxConcurrencyPath="$.c"), _A, "CONFLICTING_FIELDS", id="concurrency-twice"
        ),
        pytest.param(_map(Items=[1]), f"{_A}.Items", "FIELD_NOT_IN_LANGUAGE", id="items-in-jsonpath"),
        pytest.param(
            _map(ToleratedFailureCount=1), f"{_A}.ToleratedFailureCount", "FIELD_NOT_IN_INLINE_MAP", id="inline"
        ),
        pytest.param(
            _map(ItemBatcher={"MaxItemsPerBatch": 1}), f"{_A}.ItemBatcher", "FIELD_NOT_IN_INLINE_MAP", id="batch"
        ),
        pytest.param(
            _distributed({"Mode": "DISTRIBUTED"}),
            f"{_A}.ItemProcessor.ProcessorConfig",
            "MISSING_FIELD",
            id="no-execution",
        ),
        pytest.param(
            _distributed({"Mode": "Distributed"}),
            f"{_A}.ItemProcessor.ProcessorConfig.Mode",
            "UNKNOWN_VALUE",
            id="mode",
        ),
        pytest.param(
            _distributed(ToleratedFailurePercentage=101),
            f"{_A}.ToleratedFailurePercentage",
            "OUT_OF_RANGE",
            id="percentage",
        ),
        pytest.param(_distributed(Label="two words"), f"{_A}.Label", "BAD_LABEL", id="label"),
        pytest.param(_distributed(Label="x" * 41), f"{_A}.Label", "BAD_LABEL", id="label-long"),
        pytest.param(_distributed(ItemBatcher={}), f"{_A}.ItemBatcher", "MISSING_FIELD", id="batch-no-limit"),
        pytest.param(
            _distributed(ItemBatcher={"MaxInputBytesPerBatch": 262_145}),
            f"{_A}.ItemBatcher.MaxInputBytesPerBatch",
            "OUT_OF_RANGE",
            id="batch-bytes",
        ),
        pytest.param(_distributed(ItemReader={}), f"{_A}.ItemReader", "MISSING_FIELD", id="reader"),
        pytest.param(
            _distributed(ItemReader={"Resource": _GET, "ReaderConfig": {"InputType": "XML"}}),
            f"{_A}.ItemReader.ReaderConfig.InputType",
            "UNKNOWN_VALUE",
            id="reader-type",
        ),
        pytest.param(
            _distributed(ItemReader={"Resource": _GET, "ReaderConfig": {"CSVHeaderLocation": "GIVEN"}}),
            f"{_A}.ItemReader.ReaderConfig",
            "MISSING_FIELD",
            id="reader-headers",
        ),
        pytest.param(_distributed(ResultWriter={}), f"{_A}.ResultWriter", "MISSING_FIELD", id="writer"),
        pytest.param(
            _distributed(ResultWriter={"Resource": _PUT}), f"{_A}.ResultWriter", "MISSING_FIELD", id="writer-half"
        ),
        # Variables.
        pytest.param(_one(_task(Assign={"states": 1})), f"{_A}.Assign.states", "BAD_VARIABLE", id="reserved"),
        pytest.param(
            _one(_task(Assign={"states.$": "$"})), f"{_A}.Assign['states.$']", "BAD_VARIABLE", id="reserved-path"
        ),
        pytest.param(_one(_task(Assign={"a-b": 1})), f"{_A}.Assign.a-b", "BAD_VARIABLE", id="variable-name"),
        pytest.param(_one(_task(Assign={"_a": 1})), f"{_A}.Assign._a", "BAD_VARIABLE", id="variable-underscore"),
        pytest.param(_one(_task(Assign={"v" * 81: 1})), f"{_A}.Assign.{'v' * 81}", "BAD_VARIABLE", id="variable-long"),
        pytest.param(_jsonata(_task(Assign={"a.$": 1})), f"{_A}.Assign['a.$']", "BAD_VARIABLE", id="suffix-in-jsonata"),
        pytest.param(_one(_task(Assign=[])), f"{_A}.Assign", "WRONG_TYPE", id="assign-list"),
        pytest.param(_one(_task(Assign={"a.$": "x"})), f"{_A}.Assign['a.$']", "BAD_TEMPLATE", id="assign-path"),
        pytest.param(
            _map(_machine({"B": _task(Assign={"v": 1})}), Assign={"v.$": "$"}),
            f"{_A}.ItemProcessor.States.B.Assign.v",
            "BAD_VARIABLE",
            id="outer-variable",
        ),
        # Flow.
        pytest.param({**_one(_task()), "StartAt": "B"}, "$.StartAt", "UNKNOWN_STATE", id="start"),
        pytest.param(
            _machine({"A": _task(Next="C") | {"End": False}, "B": _task()}), f"{_A}.Next", "UNKNOWN_STATE", id="next"
        ),
        pytest.param(_machine({"A": _task(), "B": _task()}), "$.States.B", "UNREACHABLE_STATE", id="unreachable"),
        pytest.param({"StartAt": "A", "States": {}}, "$.States", "EMPTY", id="no-states"),
        pytest.param(_one({"Type": "Wait", "Seconds": 1, "Next": "A"}), "$.States", "NO_END", id="no-end"),
        pytest.param(
            {"StartAt": "n" * 81, "States": {"n" * 81: _task()}}, f"$.States.{'n' * 81}", "BAD_NAME", id="name-long"
        ),
        pytest.param(
            _map(_machine({"A": _task()})), f"{_A}.ItemProcessor.States.A", "DUPLICATE_STATE", id="name-twice"
        ),
        pytest.param(
            _map(_machine({"B": {"Type": "Pass", "Next": "A"}, "C": _task()})),
            f"{_A}.ItemProcessor.States.B.Next",
            "UNKNOWN_STATE",
            id="next-outside",
        ),
        # Placeholders.
        pytest.param(
            _one(_task(Parameters={"t": "${table}"})), f"{_A}.Parameters.t", "UNRESOLVED_SUBSTITUTION", id="value"
        ),
        pytest.param(
            _wait(SecondsPath="${path}"), f"{_A}.SecondsPath", "UNRESOLVED_SUBSTITUTION", id="path-placeholder"
        ),
    ],
)
def test_problems__one_thing_wrong__found_where_it_is(definition: Json, path: str, code: str) -> None:
    found = _found(definition)

    assert (path, code) in found
    # What follows from it may be said too, but nothing of the same kind elsewhere.
    assert [place for place, kind in found if kind == code] == [path]


@pytest.mark.parametrize(
    "definition",
    [
        pytest.param(_one(_task(Comment="why", InputPath=None, OutputPath=None, ResultPath=None)), id="null-paths"),
        pytest.param(_one(_task(), Comment="why", Version="1.0", QueryLanguage="JSONPath"), id="top-fields"),
        pytest.param(_one(_task(Resource="${orchestrator_arn}")), id="placeholder-as-resource"),
        pytest.param(
            _one(_task(Resource="arn:aws:states:::lambda:invoke", Parameters={"FunctionName": "${fn}"})),
            id="placeholder-as-function",
        ),
        pytest.param(_one(_task(Comment="see ${docs}")), id="placeholder-in-a-comment"),
        pytest.param(
            _one(_task(Retry=[{"ErrorEquals": ["X"], "Comment": "c", "MaxAttempts": 0}])), id="comment-in-retry"
        ),
        pytest.param(_one(_task(Retry=[{"ErrorEquals": ["States.Http.Socket"]}])), id="error-of-a-service"),
        pytest.param(_one(_task(Retry=[], Catch=[])), id="empty-recovery"),
        pytest.param(_retry(BackoffRate=1, MaxDelaySeconds=31_622_399, JitterStrategy="NONE"), id="retry-edges"),
        pytest.param(_one(_task(Parameters=None, ResultSelector=[1])), id="templates-that-are-no-objects"),
        pytest.param(_one(_task(Assign={"größe.$": "$.a", "b": {"c.$": "$.d"}})), id="variables"),
        pytest.param(_jsonata(_task(TimeoutSeconds="{% 5 %}", Assign={"a": "{% $states.result %}"})), id="jsonata"),
        pytest.param(_one(_task(QueryLanguage="JSONata", Arguments={"a": "$.not-a-path"})), id="jsonata-state"),
        pytest.param(_wait(Seconds=0), id="wait-zero"),
        pytest.param(_wait(SecondsPath="$$.Execution.Input.waits[-1]"), id="one-place-in-the-context"),
        pytest.param(_map(ItemsPath="$orders[0].lines"), id="one-place-in-a-variable"),
        pytest.param(_one(_task(Resource="arn:aws:states:::aws-sdk:eventbridge:putEvents")), id="sdk"),
        pytest.param(_wait(Timestamp="2030-03-14T01:59:00.123456789+02:00"), id="timestamp-nanoseconds"),
        pytest.param(_one({"Type": "Fail", "CausePath": "States.Format('{}', $.x)"}), id="cause-from-intrinsic"),
        pytest.param(_one({"Type": "Map", "Iterator": _machine({"B": _task()}), "End": True}), id="older-map"),
        pytest.param(_map(Parameters={"x.$": "$$.Map.Item.Value"}), id="older-item-selector"),
        pytest.param(
            _distributed({"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS"}, ToleratedFailurePercentage=1.5),
            id="express",
        ),
        pytest.param(_distributed(ResultWriter={"WriterConfig": {"OutputType": "JSONL"}}), id="writer-config-alone"),
        pytest.param(
            _choice({**_PRESENT, "Next": "B", "Assign": {"a.$": "$.x"}, "Comment": "c"}, Assign={"a": 1}), id="choice"
        ),
        pytest.param(
            _choice({"Condition": False, "Next": "B", "Output": "{% 1 %}"}, QueryLanguage="JSONata"),
            id="choice-jsonata",
        ),
        pytest.param(
            # A JSONata Map in a JSONPath machine: what is inside is JSONPath, as the specification says.
            _map(_machine({"B": _task(InputPath="$")}), QueryLanguage="JSONata", Items="{% $states.input %}"),
            id="language-inside-is-the-machine's",
        ),
    ],
)
def test_problems__what_is_allowed__nothing_found(definition: Json) -> None:
    assert problems(definition) == []


@pytest.mark.parametrize("path", _EXAMPLES, ids=lambda path: path.stem)
def test_problems__example__nothing_found(path: Path) -> None:
    assert problems(load(path.read_text())) == []


def test_problems__many_things_wrong__all_at_once_with_what_is_allowed() -> None:
    definition = _machine(
        {
            "A": _task(Parametrs={}, TimeoutSeconds="x", Next="Bee") | {"End": False},
            "Be": {"Type": "Wait"},
        }
    )

    found = problems(definition)

    assert {problem.code for problem in found} == {
        ProblemCode.UNKNOWN_FIELD,
        ProblemCode.WRONG_TYPE,
        ProblemCode.UNKNOWN_STATE,
        ProblemCode.MISSING_FIELD,
        ProblemCode.UNREACHABLE_STATE,
    }
    report = {problem.path: problem.allowed for problem in found}
    assert report[f"{_A}.Parametrs"] == "did you mean Parameters?"
    assert report[f"{_A}.Next"] == "did you mean Be?"
    assert all(problem.allowed and problem.fact for problem in found)


def _loop(*states: Json, exit_rule: Json) -> Json:
    names = [f"S{number}" for number in range(len(states))]
    loop = {name: {**state, "Next": to} for name, state, to in zip(names, states, [*names[1:], "Out?"], strict=True)}
    decision = {"Type": "Choice", "Choices": [{**exit_rule, "Next": "Done"}], "Default": "S0"}
    return _machine({**loop, "Out?": decision, "Done": {"Type": "Succeed"}})


_BY_TEXT = {"Variable": "$.x", "StringEquals": "done"}
_BY_NUMBER = {"Variable": "$.n", "NumericGreaterThan": 9}


@pytest.mark.parametrize(
    ("definition", "is_idle"),
    [
        pytest.param(_loop({"Type": "Pass"}, exit_rule=_BY_TEXT), True, id="pass-and-choice"),
        pytest.param(_loop({"Type": "Wait", "Seconds": 0}, exit_rule=_BY_TEXT), True, id="wait-of-nothing"),
        pytest.param(_loop({"Type": "Pass"}, {"Type": "Wait", "Seconds": 1}, exit_rule=_BY_TEXT), False, id="waits"),
        pytest.param(_loop({"Type": "Task", "Resource": "work"}, exit_rule=_BY_TEXT), False, id="works"),
        pytest.param(_loop({"Type": "Pass"}, exit_rule=_BY_NUMBER), True, id="compares-what-never-changes"),
        pytest.param(
            _loop({"Type": "Pass", "Parameters": {"n.$": "States.MathAdd($.n, 1)"}}, exit_rule=_BY_NUMBER),
            False,
            id="counts",
        ),
        pytest.param(
            _loop(
                {"Type": "Parallel", "Branches": [_machine({"B": {"Type": "Pass", "End": True}})]}, exit_rule=_BY_TEXT
            ),
            True,
            id="parallel-of-nothing",
        ),
        pytest.param(
            _loop({"Type": "Parallel", "Branches": [_machine({"B": _task()})]}, exit_rule=_BY_TEXT),
            False,
            id="parallel",
        ),
    ],
)
def test_problems__loop__idle_unless_something_waits_works_or_counts(definition: Json, is_idle: bool) -> None:
    assert _found(definition) == []
    assert _warned(definition) == ([("$.States.S0", "IDLE_LOOP")] if is_idle else [])


def test_problems__larger_than_step_functions_takes__found() -> None:
    definition = _one({"Type": "Pass", "Result": "x" * 1_048_576, "End": True})

    assert _found(definition) == [("$", "DEFINITION_TOO_LARGE")]


def test_problems__nested_without_end__one_problem_and_no_recursion() -> None:
    value: Json = 1
    for _ in range(100_000):
        value = [value]

    assert _found(_one({"Type": "Pass", "Result": value, "End": True})) == [("$", "DEFINITION_TOO_DEEP")]


def test_problems__thousands_of_states__in_seconds() -> None:
    states: dict[str, Json] = {f"S{i}": {"Type": "Pass", "Next": f"S{i + 1}"} for i in range(5_000)}
    states["S5000"] = {"Type": "Succeed"}
    began = time.monotonic()

    assert problems(_machine(states)) == []
    assert time.monotonic() - began < 10


_JUNK: list[Json] = [None, 0, "x", [], [1], {}, {"x": 1}, True, {"Next": 1}, [None], {"States": {"B": None}}]


@pytest.mark.parametrize(
    "field",
    ["Type", "Next", "End", "Retry", "Catch", "Choices", "Branches", "ItemProcessor", "Iterator", "ItemReader",
     "ItemBatcher", "ResultWriter", "Assign", "Parameters", "Seconds", "Resource", "QueryLanguage", "Default", "Items"],
)  # fmt: skip
def test_problems__junk_in_any_field__reported_and_never_raised(field: str) -> None:
    for kind in ("Task", "Choice", "Parallel", "Map", "Wait", "Fail"):
        for junk in _JUNK:
            found = problems(_one({"Type": kind, "Resource": "work", "End": True, field: junk}))
            assert all(problem.path.startswith("$") for problem in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{"A": 1,\n "A": 2}', r"'A' twice in one object: line 1, column 2 and line 2, column 2", id="top"),
        pytest.param('{"a": [{"b": 1, "c": {}, "b": 2}]}', r"'b' twice", id="in-a-list"),
        pytest.param('{"a": 1, "\\u0061": 2}', r"'a' twice", id="written-unlike"),
        pytest.param('{"a": }', r"line 1, column 7", id="not-json"),
        pytest.param('{"a": NaN}', r"NaN", id="constant"),
        pytest.param("[" * 200_000 + "]" * 200_000, r"nested deeper", id="deep"),
        pytest.param('"' + "é" * 524_288 + '"', r"1048578 bytes", id="large"),
    ],
)
def test_load__text_that_is_no_definition__refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        load(text)


def test_load__same_names_in_unlike_objects_and_marks_in_strings__read() -> None:
    text = '{"a": {"x": "}{\\"x\\":"}, "b": {"x": [{"x": 1}, {"x": 2}]}, "x": ":,"}'

    assert load(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "fact"),
    [('{"a": ' + "1" * 5_000 + "}", "number that cannot be read"), ('{"a": "\ud800"}', "lone surrogate")],
)
def test_load__what_json_does_not_have__is_refused(text: str, fact: str) -> None:
    with pytest.raises(DefinitionError, match=fact):
        load(text)


# Targets.

_GLUE = "arn:aws:states:::glue:startJobRun.sync"


def _by_severity(definition: Json, target: Target) -> list[tuple[str, str]]:
    return [(each.severity.value, each.code.value) for each in findings(definition, target, LocalTasks())]


@pytest.mark.parametrize(
    ("resource", "here", "on_aws"),
    [
        pytest.param("arn:aws:lambda:eu-west-1:1:function:work", [], [], id="function"),
        pytest.param("arn:aws:states:eu-west-1:1:activity:work", [], [], id="activity"),
        pytest.param("arn:aws:states:::lambda:invoke.waitForTaskToken", [], [], id="invoke"),
        pytest.param("arn:aws:states:::states:startExecution.sync:2", [], [], id="machine-on-aws"),
        pytest.param("${WorkArn}", [], [], id="placeholder"),
        pytest.param("arn:${AWS::Partition}:states:::sns:publish", [], [], id="partition-placeholder"),
        pytest.param("arn:aws:lambda:${AWS::Region}:${Account}:function:${Work}", [], [], id="parts-are-placeholders"),
        pytest.param(_GLUE, ["ERROR"], ["NOTE"], id="job"),
        pytest.param("arn:aws:states:::aws-sdk:s3:copyObject", ["ERROR"], ["NOTE"], id="sdk"),
        pytest.param("arn:aws:states:::emr-containers:startJobRun.sync", ["ERROR"], ["NOTE"], id="hyphen"),
        pytest.param("arn:aws:states:eu-west-1:12:aws-sdk:s3:copyObject", ["ERROR"], ["NOTE"], id="region-and-account"),
        pytest.param("arn:aws:lambda:eu-west-1:1:function:work:$LATEST", [], [], id="function-with-a-version"),
        pytest.param(
            "arn:aws:lambda:eu-west-1:1:function:work:", ["ERROR"], ["ERROR"], id="function-without-its-alias"
        ),
        pytest.param("work", [], ["ERROR"], id="name"),
        pytest.param("machine:other.sync", [], ["ERROR"], id="machine"),
        pytest.param("fanout:work", [], ["ERROR"], id="fan-out"),
        pytest.param("arn:aws:s3:::bucket", ["ERROR"], ["ERROR"], id="other-arn"),
    ],
)
def test_findings__resource__is_judged_by_the_target(resource: str, here: list[str], on_aws: list[str]) -> None:
    definition = _one(_task(Resource=resource))

    assert [severity for severity, _ in _by_severity(definition, Target.LOCAL)] == here
    assert [severity for severity, _ in _by_severity(definition, Target.AWS)] == on_aws


@pytest.mark.parametrize(
    ("resource", "is_accepted"),
    [
        pytest.param(_GLUE, True, id="integration"),
        pytest.param("arn:aws:states:::dynamodb:query", True, id="implemented-here-alone"),
        pytest.param("arn:aws:states:::glue:startCrawler", False, id="no-integration"),
        pytest.param("arn:aws:states:::http:invoke.sync", False, id="no-such-wait"),
    ],
)
def test_problems__task_that_a_resource_map_may_replace__can_be_stored(resource: str, is_accepted: bool) -> None:
    found = [each.code.value for each in problems(_one(_task(Resource=resource)))]

    assert found == ([] if is_accepted else ["BAD_RESOURCE"])


def test_findings__resource_map__replaces_what_it_names() -> None:
    entry = MappedResource("glue:startJobRun", {"JobName": "orders"}, answer={"JobRunState": "SUCCEEDED"})
    tasks = LocalTasks(ResourceMap((entry,)))

    def found(parameters: Json) -> list[str]:
        definition = _one(_task(Resource=_GLUE, Parameters=parameters))
        return [each.code.value for each in findings(definition, tasks=tasks)]

    assert found({"JobName": "orders"}) == []
    # Which job it is depends on the input.
    assert found({"JobName.$": "$.job"}) == []
    assert found({"JobName": "returns"}) == ["BAD_RESOURCE"]


def test_findings__item_reader_of_parquet__is_for_aws_alone() -> None:
    definition = _distributed(ItemReader={"Resource": _GET, "ReaderConfig": {"InputType": "PARQUET"}})

    assert ("NOTE", "ONLY_ON_AWS") in _by_severity(definition, Target.AWS)
    assert _by_severity(definition, Target.LOCAL) == [("ERROR", "ONLY_ON_AWS")]


def test_findings__placeholder_that_a_deployment_fills_in__is_a_note_for_aws() -> None:
    template = {"TableName": "${Table}", "uri.$": "States.Format('s3://${Bucket}/{}', $.key)", "id.$": "$.${Key}"}
    definition = _one(_task(Resource="arn:aws:states:::lambda:invoke", Parameters=template))

    assert _by_severity(definition, Target.AWS) == [("NOTE", "UNRESOLVED_SUBSTITUTION")] * 3
    assert _by_severity(definition, Target.LOCAL) == [("ERROR", "UNRESOLVED_SUBSTITUTION")] * 3


@pytest.mark.parametrize(
    ("definition", "warned"),
    [
        pytest.param(
            _retry(ErrorEquals=["States.TaskFaild"]),
            [(f"{_A}.Retry[0].ErrorEquals[0]", "UNKNOWN_ERROR")],
            id="resembles-a-reserved-error",
        ),
        pytest.param(_retry(ErrorEquals=["States.Quorum"]), [], id="resembles-none"),
        pytest.param(
            _machine(
                {
                    "A": _task(Catch=[{"ErrorEquals": ["States.TaskFailed2"], "Next": "B"}]),
                    "B": {"Type": "Fail", "Error": "States.TaskFailed2"},
                }
            ),
            [],
            id="a-fail-has-it",
        ),
        pytest.param(
            _one(_task(InputPath="$.labels[?(@.Name==Receipt)]")),
            [(f"{_A}.InputPath", "BAD_PATH")],
            id="word-without-quotes",
        ),
        pytest.param(_one(_task(InputPath="$.labels[?(@.Name=='Receipt' && @.ok==true)]")), [], id="quoted"),
        pytest.param(_one(_task(Parameters={"name.$": "$$.Execution.Name "})), [], id="white-space-after-a-path"),
        pytest.param(
            _jsonata(_task(Arguments={"a": ["{% 1 %", "{% 1 %}", "x"]}, Output="1 %}")),
            [(f"{_A}.Arguments.a[0]", "BAD_JSONATA"), (f"{_A}.Output", "BAD_JSONATA")],
            id="half-of-the-signs-of-an-expression",
        ),
    ],
)
def test_findings__what_aws_accepts_and_is_probably_mistaken__is_a_warning(
    definition: Json, warned: list[tuple[str, str]]
) -> None:
    assert _found(definition) == []
    assert _warned(definition) == warned
