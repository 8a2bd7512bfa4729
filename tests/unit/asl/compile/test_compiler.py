"""Compiler: every field of a definition is compiled to the evaluator that the interpreter uses."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from headgate.asl.compile.compiler import compile_known
from headgate.asl.compile.validator import load
from headgate.asl.expressions.references import WHOLE
from headgate.asl.expressions.scope import Evaluator, Scope
from headgate.asl.machines.registry import checked_definition
from headgate.asl.model.definition import (
    ChoiceSpec,
    ExecutionType,
    FailSpec,
    Jitter,
    Language,
    MapMode,
    MapSpec,
    ParallelSpec,
    PassSpec,
    Retrier,
    State,
    StateType,
    TaskSpec,
    WaitSpec,
)
from headgate.errors import DefinitionError

Json = Any
_EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "asl").glob("*.asl.json"))


def _scope(data: Json = None, **fields: Json) -> Scope:
    return Scope(data, {"Name": "ctx"}, {"v": 7}, random.Random(1), **fields)


def _value(evaluator: Evaluator | None, scope: Scope) -> Json:
    assert evaluator is not None
    return evaluator(scope)


def _state(state: Json, **fields: Json) -> State:
    states = {"A": state, "B": {"Type": "Succeed"}}
    if "Next" not in state and state["Type"] != "Choice":
        del states["B"]
    return compile_known({"StartAt": "A", "States": states, **fields}).states["A"]


def _task(**fields: Json) -> Json:
    return {"Type": "Task", "Resource": "${work}", "End": True} | fields


def _processor() -> Json:
    return {"StartAt": "P", "States": {"P": _task(InputPath="$.item")}}


def test_machine__definition__start_states_time_out_and_comment() -> None:
    definition = {
        "StartAt": "A",
        "TimeoutSeconds": 60,
        "Comment": "c",
        "States": {"A": _task(Next="B") | {"End": False}, "B": {"Type": "Succeed"}},
    }

    machine = compile_known(definition)

    assert (machine.start_at, machine.timeout_seconds, machine.comment) == ("A", 60, "c")
    assert [(state.name, state.kind, state.next) for state in machine.states.values()] == [
        ("A", StateType.TASK, "B"),
        ("B", StateType.SUCCEED, None),
    ]


def test_machine__problems__definition_error_that_lists_them() -> None:
    with pytest.raises(DefinitionError) as raised:
        checked_definition(json.dumps({"StartAt": "B", "States": {"A": {"Type": "Wait", "End": True}}}))

    assert "$.States.A: it has no duration" in str(raised.value)
    assert "$.StartAt: " in str(raised.value)


def test_task__jsonpath__filters_templates_and_times() -> None:
    state = _state(
        _task(
            InputPath="$.in",
            Parameters={"a.$": "$.x", "b": 1},
            ResultSelector={"r.$": "$.y"},
            ResultPath="$.out",
            OutputPath="$.out.r",
            TimeoutSecondsPath="$.t",
            HeartbeatSeconds=5,
            Assign={"n.$": "$.y"},
        )
    )

    assert state.language is Language.JSONPATH
    assert isinstance(state.spec, TaskSpec)
    assert state.spec.resource == "${work}"
    assert _value(state.input_path, _scope({"in": 1})) == 1
    assert _value(state.parameters, _scope({"x": 2})) == {"a": 2, "b": 1}
    assert _value(state.result_selector, _scope({"y": 3})) == {"r": 3}
    assert state.result_path is not None
    assert state.result_path.write({"k": 0}, 1) == {"k": 0, "out": 1}
    assert _value(state.output_path, _scope({"out": {"r": 4}})) == 4
    assert _value(state.spec.timeout_seconds, _scope({"t": 9})) == 9
    assert _value(state.spec.heartbeat_seconds, _scope()) == 5
    assert _value(state.assign, _scope({"y": 5})) == {"n": 5}
    assert (state.arguments, state.output, state.discards_result) == (None, None, False)


def test_task__null_paths__empty_input_and_output_and_result_discarded() -> None:
    state = _state(_task(InputPath=None, OutputPath=None, ResultPath=None))

    assert _value(state.input_path, _scope({"a": 1})) == {}
    assert _value(state.output_path, _scope({"a": 1})) == {}
    assert (state.result_path, state.discards_result) == (None, True)


def test_task__jsonata__arguments_output_and_expressions_for_numbers() -> None:
    state = _state(
        _task(
            Arguments={"a": "{% $states.input.x %}"},
            Output="{% $states.result.y %}",
            TimeoutSeconds="{% $v * 2 %}",
            Assign={"n": "{% $v + 1 %}", "m": [1]},
        ),
        QueryLanguage="JSONata",
    )

    assert isinstance(state.spec, TaskSpec)
    assert state.language is Language.JSONATA
    assert _value(state.arguments, _scope(input={"x": 1})) == {"a": 1}
    assert _value(state.output, _scope(result={"y": 2}, has_result=True)) == 2
    assert _value(state.spec.timeout_seconds, _scope()) == 14
    assert _value(state.assign, _scope()) == {"n": 8, "m": [1]}


def test_retry__given_and_left_out__values_and_defaults() -> None:
    entry = {
        "ErrorEquals": ["X", "Y"],
        "IntervalSeconds": 2,
        "MaxAttempts": 0,
        "BackoffRate": 1.5,
        "MaxDelaySeconds": 9,
        "JitterStrategy": "FULL",
    }

    state = _state(_task(Retry=[entry, {"ErrorEquals": ["States.ALL"]}]))

    assert state.retry == (
        Retrier(("X", "Y"), 2.0, 0, 1.5, 9.0, Jitter.FULL),
        Retrier(("States.ALL",), 1.0, 3, 2.0, None, Jitter.NONE),
    )


def test_catch__result_paths__whole_place_and_none() -> None:
    catch: list[dict[str, Json]] = [{"ErrorEquals": [name], "Next": "B"} for name in "XYZ"]
    catch[1]["ResultPath"] = "$.error"
    catch[2]["ResultPath"] = None

    state = _state(_task(Next="B", Catch=catch) | {"End": False})

    assert [entry.result_path.text if entry.result_path else None for entry in state.catch] == [
        WHOLE.text,
        "$.error",
        None,
    ]
    assert [(entry.errors, entry.next) for entry in state.catch] == [(("X",), "B"), (("Y",), "B"), (("Z",), "B")]


def test_catch__jsonata__output_and_assign() -> None:
    entry = {
        "ErrorEquals": ["X"],
        "Next": "B",
        "Output": "{% $states.errorOutput.Error %}",
        "Assign": {"e": "{% $states.errorOutput.Cause %}"},
    }

    (caught,) = _state(_task(Next="B", Catch=[entry]) | {"End": False}, QueryLanguage="JSONata").catch

    scope = _scope(error_output={"Error": "E", "Cause": "C"}, has_error=True)
    assert caught.result_path is None
    assert _value(caught.output, scope) == "E"
    assert _value(caught.assign, scope) == {"e": "C"}


@pytest.mark.parametrize(
    ("fields", "language", "expected"),
    [
        pytest.param({"Result": {"a.$": "$.x"}}, "JSONPath", {"a.$": "$.x"}, id="result-is-no-template"),
        pytest.param({"Result": None}, "JSONPath", None, id="result-null"),
    ],
)
def test_pass__result__given_as_written(fields: Json, language: str, expected: Json) -> None:
    spec = _state({"Type": "Pass", "End": True, **fields}, QueryLanguage=language).spec

    assert isinstance(spec, PassSpec)
    assert _value(spec.result, _scope({"x": 1})) == expected


def test_choice__jsonpath__rules_in_order_with_default() -> None:
    rules = [
        {"Variable": "$.n", "NumericGreaterThan": 5, "Next": "B", "Comment": "c", "Assign": {"big.$": "$.n"}},
        {"Not": {"Variable": "$.s", "IsPresent": True}, "Next": "B"},
    ]

    spec = _state({"Type": "Choice", "Choices": rules, "Default": "B"}).spec

    assert isinstance(spec, ChoiceSpec)
    assert spec.default == "B"
    assert [rule.condition(_scope({"n": 6, "s": 1})) for rule in spec.rules] == [True, False]
    assert [rule.condition(_scope({"n": 5})) for rule in spec.rules] == [False, True]
    assert _value(spec.rules[0].assign, _scope({"n": 6})) == {"big": 6}


def test_choice__jsonata__conditions_and_outputs() -> None:
    rules = [{"Condition": "{% $v > 6 %}", "Next": "B", "Output": "{% $v %}"}, {"Condition": True, "Next": "B"}]

    spec = _state({"Type": "Choice", "Choices": rules}, QueryLanguage="JSONata").spec

    assert isinstance(spec, ChoiceSpec)
    assert spec.default is None
    assert [rule.condition(_scope()) for rule in spec.rules] == [True, True]
    assert _value(spec.rules[0].output, _scope()) == 7


@pytest.mark.parametrize(
    ("fields", "language", "seconds", "timestamp"),
    [
        pytest.param({"Seconds": 3}, "JSONPath", 3, None, id="seconds"),
        pytest.param({"SecondsPath": "$.s"}, "JSONPath", 4, None, id="seconds-path"),
        pytest.param({"Timestamp": "2030-01-01T00:00:00Z"}, "JSONPath", None, "2030-01-01T00:00:00Z", id="timestamp"),
        pytest.param({"TimestampPath": "$.t"}, "JSONPath", None, "T", id="timestamp-path"),
        pytest.param({"Seconds": "{% $v %}"}, "JSONata", 7, None, id="seconds-jsonata"),
        pytest.param({"Timestamp": "{% 'T' & 1 %}"}, "JSONata", None, "T1", id="timestamp-jsonata"),
    ],
)
def test_wait__each_way_of_writing_it__seconds_or_timestamp(
    fields: Json, language: str, seconds: Json, timestamp: Json
) -> None:
    spec = _state({"Type": "Wait", "End": True, **fields}, QueryLanguage=language).spec

    assert isinstance(spec, WaitSpec)
    scope = _scope({"s": 4, "t": "T"})
    assert (spec.seconds and spec.seconds(scope), spec.timestamp and spec.timestamp(scope)) == (seconds, timestamp)


@pytest.mark.parametrize(
    ("fields", "language", "error", "cause"),
    [
        pytest.param({"Error": "E", "Cause": "C"}, "JSONPath", "E", "C", id="constants"),
        pytest.param({"ErrorPath": "$.e", "CausePath": "States.Format('{}!', $.c)"}, "JSONPath", "e", "c!", id="paths"),
        pytest.param({"Error": "{% 'e' & $v %}", "Cause": "C"}, "JSONata", "e7", "C", id="jsonata"),
    ],
)
def test_fail__each_way_of_writing_it__error_and_cause(fields: Json, language: str, error: str, cause: str) -> None:
    spec = _state({"Type": "Fail", **fields}, QueryLanguage=language).spec

    assert isinstance(spec, FailSpec)
    scope = _scope({"e": "e", "c": "c"})
    assert (_value(spec.error, scope), _value(spec.cause, scope)) == (error, cause)


def test_parallel__branches__machines_in_order() -> None:
    branches = [{"StartAt": name, "States": {name: _task()}} for name in ("X", "Y")]

    spec = _state({"Type": "Parallel", "Branches": branches, "End": True}).spec

    assert isinstance(spec, ParallelSpec)
    assert [branch.start_at for branch in spec.branches] == ["X", "Y"]


def test_map__inline_with_older_fields__selector_and_not_parameters() -> None:
    state = _state(
        {
            "Type": "Map",
            "Iterator": _processor(),
            "Parameters": {"i.$": "$$.Name"},
            "ItemsPath": "$.items",
            "MaxConcurrencyPath": "$.c",
            "End": True,
        }
    )

    spec = state.spec
    assert isinstance(spec, MapSpec)
    assert state.parameters is None
    assert (spec.mode, spec.processor.start_at) == (MapMode.INLINE, "P")
    assert _value(spec.selector, _scope()) == {"i": "ctx"}
    assert _value(spec.items, _scope({"items": [1]})) == [1]
    assert _value(spec.concurrency_max, _scope({"c": 3})) == 3


def test_map__distributed__reader_batcher_writer_and_a_processor_that_stands_alone() -> None:
    processor = {**_processor(), "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS"}}
    state = _state(
        {
            "Type": "Map",
            "ItemProcessor": processor,
            "Label": "l",
            "ToleratedFailureCountPath": "$.f",
            "ToleratedFailurePercentage": 5,
            "ItemReader": {
                "Resource": "r",
                "Parameters": {"Key.$": "$.k"},
                "ReaderConfig": {"InputType": "CSV", "MaxItemsPath": "$.m"},
            },
            "ItemBatcher": {"MaxItemsPerBatch": 10, "MaxInputBytesPerBatchPath": "$.b", "BatchInput": {"x.$": "$.k"}},
            "ResultWriter": {"Resource": "w", "Parameters": {"Bucket": "b"}, "WriterConfig": {"OutputType": "JSONL"}},
            "End": True,
        }
    )
    scope = _scope({"f": 2, "k": "key", "m": 100, "b": 1000})

    spec = state.spec
    assert isinstance(spec, MapSpec)
    assert (spec.mode, spec.execution_type, spec.label) == (MapMode.DISTRIBUTED, ExecutionType.EXPRESS, "l")
    assert _value(spec.tolerated_failures, scope) == 2
    assert _value(spec.tolerated_failure_percentage, scope) == 5
    assert spec.reader is not None
    assert (spec.reader.resource, spec.reader.parameters(scope), _value(spec.reader.items_max, scope)) == (
        "r",
        {"Key": "key"},
        100,
    )
    assert spec.reader.config["InputType"] == "CSV"
    assert spec.batcher is not None
    assert (_value(spec.batcher.items_max, scope), _value(spec.batcher.bytes_max, scope)) == (10, 1000)
    assert _value(spec.batcher.batch_input, scope) == {"x": "key"}
    assert spec.writer is not None
    assert (spec.writer.resource, _value(spec.writer.parameters, scope), spec.writer.config) == (
        "w",
        {"Bucket": "b"},
        {"OutputType": "JSONL"},
    )
    assert spec.processor_definition == {"QueryLanguage": "JSONPath", **_processor()}
    assert compile_known(spec.processor_definition).states["P"].language is Language.JSONPATH


@pytest.mark.parametrize("machine_language", list(Language))
def test_map__language_of_its_own__inside_it_the_machine_s(machine_language: Language) -> None:
    inside = {"StartAt": "P", "States": {"P": {"Type": "Pass", "End": True}}}
    state = {"Type": "Map", "QueryLanguage": "JSONata", "Items": "{% [$v] %}", "ItemProcessor": inside, "End": True}

    compiled = _state(state, QueryLanguage=machine_language.value)

    assert isinstance(compiled.spec, MapSpec)
    assert compiled.language is Language.JSONATA
    assert compiled.spec.processor.states["P"].language is machine_language
    assert compiled.spec.processor_definition["QueryLanguage"] == machine_language
    assert _value(compiled.spec.items, _scope()) == [7]


@pytest.mark.parametrize("path", _EXAMPLES, ids=lambda path: path.stem)
def test_machine__example__compiled_without_touching_the_definition(path: Path) -> None:
    definition = load(path.read_text())

    machine = compile_known(definition)

    assert machine.start_at in machine.states
    assert definition == load(path.read_text())
