"""Compiler: builds a `Machine` from the JSON of a definition, with every expression compiled once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from headgate.asl.compile.validator import BESIDE_CONDITION, language_of
from headgate.asl.expressions.choice_rules import compile_rule
from headgate.asl.expressions.jsonata import compile_field, is_expression
from headgate.asl.expressions.jsonpath import compile_path, compile_reference
from headgate.asl.expressions.payload_templates import compile_dynamic, compile_template
from headgate.asl.expressions.references import WHOLE, Reference
from headgate.asl.expressions.scope import Evaluator, Json, constant
from headgate.asl.model.definition import (
    BatcherSpec,
    Catcher,
    ChoiceRule,
    ChoiceSpec,
    ExecutionType,
    FailSpec,
    Jitter,
    Language,
    Machine,
    MapMode,
    MapSpec,
    ParallelSpec,
    PassSpec,
    ReaderSpec,
    Retrier,
    Spec,
    State,
    StateType,
    TaskSpec,
    WaitSpec,
    WriterSpec,
)
from headgate.asl.model.transitions import processor_of

_Compiled = TypeVar("_Compiled")
_INVOKE: Final = ":::lambda:invoke"


def compile_known(definition: Json) -> Machine:
    """Compile a definition that this or an earlier release validated.

    It is not validated again: an execution keeps the rules under which it was started.
    """
    return _machine(definition, language_of(definition, Language.JSONPATH))


def _machine(definition: Mapping[str, Json], language: Language) -> Machine:
    return Machine(
        start_at=definition["StartAt"],
        states={name: _state(name, state, language) for name, state in definition["States"].items()},
        timeout_seconds=definition.get("TimeoutSeconds"),
        comment=str(definition.get("Comment", "")),
    )


def _state(name: str, state: Mapping[str, Json], machine_language: Language) -> State:
    kind, language = StateType(state["Type"]), language_of(state, machine_language)
    return State(
        name=name,
        kind=kind,
        language=language,
        spec=_SPECS[kind](state, language, machine_language),
        next=None if state.get("End") is True else state.get("Next"),
        input_path=_filter(state, "InputPath"),
        # The Parameters of an older Map are its ItemSelector: evaluated for each item, not once.
        parameters=_optional(state, "Parameters", compile_template) if kind is not StateType.MAP else None,
        result_selector=_optional(state, "ResultSelector", compile_template),
        result_path=_optional(state, "ResultPath", compile_reference) if state.get("ResultPath") is not None else None,
        output_path=_filter(state, "OutputPath"),
        discards_result="ResultPath" in state and state["ResultPath"] is None,
        arguments=_template(state, "Arguments", Language.JSONATA),
        output=_template(state, "Output", Language.JSONATA),
        assign=_template(state, "Assign", language),
        retry=tuple(_retrier(entry) for entry in state.get("Retry", ())),
        catch=tuple(_catcher(entry, language) for entry in state.get("Catch", ())),
    )


def _optional(holder: Mapping[str, Json], field: str, compiler: Callable[[Json], _Compiled]) -> _Compiled | None:
    return compiler(holder[field]) if field in holder else None


def _filter(state: Mapping[str, Json], field: str) -> Evaluator | None:
    if field not in state:
        return None
    # A null path returns an empty object.
    return constant({}) if state[field] is None else compile_path(state[field], field)


def _value(holder: Mapping[str, Json], field: str, language: Language) -> Evaluator | None:
    """Compile a field that is an expression in JSONata, and in JSONPath a value or a path in `<field>Path`."""
    if field in holder:
        return compile_field(holder[field], field) if language is Language.JSONATA else constant(holder[field])
    indirect = f"{field}Path"
    return compile_path(holder[indirect], indirect) if indirect in holder else None


def _template(holder: Mapping[str, Json], field: str, language: Language) -> Evaluator | None:
    if language is Language.JSONATA:
        return compile_field(holder[field], field) if field in holder else None
    return _optional(holder, field, compile_template)


def _retrier(entry: Mapping[str, Json]) -> Retrier:
    longest = entry.get("MaxDelaySeconds")
    return Retrier(
        errors=tuple(entry["ErrorEquals"]),
        interval_seconds=float(entry.get("IntervalSeconds", 1)),
        attempts_max=entry.get("MaxAttempts", 3),
        backoff_rate=float(entry.get("BackoffRate", 2.0)),
        delay_seconds_max=None if longest is None else float(longest),
        jitter=Jitter(entry.get("JitterStrategy", Jitter.NONE)),
    )


def _catcher(entry: Mapping[str, Json], language: Language) -> Catcher:
    return Catcher(
        errors=tuple(entry["ErrorEquals"]),
        next=entry["Next"],
        result_path=_error_path(entry) if language is Language.JSONPATH else None,
        output=_template(entry, "Output", Language.JSONATA),
        assign=_template(entry, "Assign", language),
    )


def _error_path(entry: Mapping[str, Json]) -> Reference | None:
    # Without a ResultPath the error replaces the input; with null the input is passed on.
    path = entry.get("ResultPath", WHOLE.text)
    return None if path is None else compile_reference(path)


def _task(state: Mapping[str, Json], language: Language, _: Language) -> Spec:
    parameters = state.get(_call_field(language))
    is_invoke = _INVOKE in state["Resource"]
    function = parameters.get("FunctionName") if is_invoke and isinstance(parameters, dict) else None
    members = parameters.items() if isinstance(parameters, dict) else ()
    constants = {name: value for name, value in members if not name.endswith(".$") and _is_constant(value)}
    return TaskSpec(
        resource=state["Resource"],
        function=function if isinstance(function, str) and not is_expression(function) else "",
        timeout_seconds=_value(state, "TimeoutSeconds", language),
        heartbeat_seconds=_value(state, "HeartbeatSeconds", language),
        constants=constants,
        has_only_constants=isinstance(parameters, dict) and len(constants) == len(parameters),
    )


def _is_constant(value: Json) -> bool:
    """Whether a value has no expression in it, in either language."""
    if isinstance(value, dict):
        return all(not name.endswith(".$") and _is_constant(each) for name, each in value.items())
    if isinstance(value, list):
        return all(map(_is_constant, value))
    return not (isinstance(value, str) and is_expression(value))


def _pass(state: Mapping[str, Json], _: Language, __: Language) -> Spec:
    return PassSpec(result=_optional(state, "Result", constant))


def _choice(state: Mapping[str, Json], language: Language, _: Language) -> Spec:
    rules = tuple(
        ChoiceRule(
            condition=_condition(entry, language),
            next=entry["Next"],
            assign=_template(entry, "Assign", language),
            output=_template(entry, "Output", Language.JSONATA),
        )
        for entry in state["Choices"]
    )
    return ChoiceSpec(rules=rules, default=state.get("Default"))


def _condition(entry: Mapping[str, Json], language: Language) -> Evaluator:
    if language is Language.JSONATA:
        return compile_field(entry["Condition"], "Condition")
    return compile_rule({key: part for key, part in entry.items() if key not in BESIDE_CONDITION})


def _wait(state: Mapping[str, Json], language: Language, _: Language) -> Spec:
    return WaitSpec(seconds=_value(state, "Seconds", language), timestamp=_value(state, "Timestamp", language))


def _succeed(_: Mapping[str, Json], __: Language, ___: Language) -> None:
    return None


def _fail(state: Mapping[str, Json], language: Language, _: Language) -> Spec:
    return FailSpec(error=_fail_field(state, "Error", language), cause=_fail_field(state, "Cause", language))


def _fail_field(state: Mapping[str, Json], field: str, language: Language) -> Evaluator | None:
    # These paths, unlike others, may be intrinsic functions.
    indirect = f"{field}Path"
    return compile_dynamic(state[indirect], indirect) if indirect in state else _value(state, field, language)


def _parallel(state: Mapping[str, Json], _: Language, machine_language: Language) -> Spec:
    return ParallelSpec(branches=tuple(_machine(branch, machine_language) for branch in state["Branches"]))


def _map(state: Mapping[str, Json], language: Language, machine_language: Language) -> Spec:
    _, processor = processor_of(state)
    config = processor.get("ProcessorConfig", {})
    # Iterations run it as a machine of its own, without its ProcessorConfig.
    machine = {key: part for key, part in processor.items() if key != "ProcessorConfig"}
    selector = "ItemSelector" if "ItemSelector" in state else "Parameters"
    return MapSpec(
        processor=_machine(processor, machine_language),
        processor_definition={"QueryLanguage": machine_language.value, **machine},
        mode=MapMode(config.get("Mode", MapMode.INLINE)),
        execution_type=ExecutionType(config.get("ExecutionType", ExecutionType.STANDARD)),
        items=_value(state, "Items", language),
        selector=_template(state, selector, language),
        concurrency_max=_value(state, "MaxConcurrency", language),
        tolerated_failures=_value(state, "ToleratedFailureCount", language),
        tolerated_failure_percentage=_value(state, "ToleratedFailurePercentage", language),
        reader=_reader(state["ItemReader"], language) if "ItemReader" in state else None,
        batcher=_batcher(state["ItemBatcher"], language) if "ItemBatcher" in state else None,
        writer=_writer(state["ResultWriter"], language) if "ResultWriter" in state else None,
        label=state.get("Label"),
    )


def _call_field(language: Language) -> str:
    return "Arguments" if language is Language.JSONATA else "Parameters"


def _reader(reader: Mapping[str, Json], language: Language) -> ReaderSpec:
    config = reader.get("ReaderConfig", {})
    return ReaderSpec(
        resource=reader["Resource"],
        parameters=_template(reader, _call_field(language), language) or constant({}),
        config=config,
        items_max=_value(config, "MaxItems", language),
    )


def _batcher(batcher: Mapping[str, Json], language: Language) -> BatcherSpec:
    return BatcherSpec(
        items_max=_value(batcher, "MaxItemsPerBatch", language),
        bytes_max=_value(batcher, "MaxInputBytesPerBatch", language),
        batch_input=_template(batcher, "BatchInput", language),
    )


def _writer(writer: Mapping[str, Json], language: Language) -> WriterSpec:
    return WriterSpec(
        resource=writer.get("Resource"),
        parameters=_template(writer, _call_field(language), language),
        config=writer.get("WriterConfig"),
    )


_SPECS: Final[Mapping[StateType, Callable[[Mapping[str, Json], Language, Language], Spec | None]]] = {
    StateType.TASK: _task,
    StateType.PASS: _pass,
    StateType.CHOICE: _choice,
    StateType.WAIT: _wait,
    StateType.SUCCEED: _succeed,
    StateType.FAIL: _fail,
    StateType.PARALLEL: _parallel,
    StateType.MAP: _map,
}
