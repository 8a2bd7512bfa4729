"""Compiled state machine: the interpreter runs it. `compile.compiler` builds it from a definition's JSON."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from headgate.asl.expressions.references import Reference
from headgate.asl.expressions.scope import Evaluator, Json


class Language(enum.StrEnum):
    """The query language of a state's fields."""

    JSONPATH = "JSONPath"
    JSONATA = "JSONata"


class StateType(enum.StrEnum):
    """The type of a state."""

    TASK = "Task"
    PASS = "Pass"
    CHOICE = "Choice"
    WAIT = "Wait"
    SUCCEED = "Succeed"
    FAIL = "Fail"
    PARALLEL = "Parallel"
    MAP = "Map"


class Jitter(enum.StrEnum):
    """Whether the delays of a Retry are randomized."""

    FULL = "FULL"
    NONE = "NONE"


class MapMode(enum.StrEnum):
    """Whether the iterations of a Map run inside the execution, or as executions of their own."""

    INLINE = "INLINE"
    DISTRIBUTED = "DISTRIBUTED"


class ExecutionType(enum.StrEnum):
    """How a distributed Map runs its iterations: as durable executions, or at least once in memory."""

    STANDARD = "STANDARD"
    EXPRESS = "EXPRESS"


class Retrier(Struct, frozen=True):
    """One entry of Retry."""

    errors: tuple[str, ...]
    interval_seconds: float = 1.0
    attempts_max: int = 3
    backoff_rate: float = 2.0
    delay_seconds_max: float | None = None
    jitter: Jitter = Jitter.NONE


class Catcher(Struct, frozen=True):
    """One entry of Catch."""

    errors: tuple[str, ...]
    next: str
    # JSONPath: where the error is inserted into the state's input; None ("ResultPath": null) passes the input on.
    result_path: Reference | None = None
    # JSONata: the input of the next state.
    output: Evaluator | None = None
    assign: Evaluator | None = None


class TaskSpec(Struct, frozen=True):
    """The resource that a Task calls, and its timeouts."""

    resource: str
    # The FunctionName of lambda:invoke, if it is a constant.
    function: str = ""
    timeout_seconds: Evaluator | None = None
    heartbeat_seconds: Evaluator | None = None
    # The Parameters or Arguments that the definition states as they are, and whether there are no others.
    constants: Mapping[str, Json] = {}
    has_only_constants: bool = False


class PassSpec(Struct, frozen=True):
    """The Result of a Pass, which replaces its input."""

    result: Evaluator | None = None


class ChoiceRule(Struct, frozen=True):
    """One entry of Choices."""

    condition: Evaluator
    next: str
    assign: Evaluator | None = None
    output: Evaluator | None = None


class ChoiceSpec(Struct, frozen=True):
    """The rules of a Choice."""

    rules: tuple[ChoiceRule, ...]
    default: str | None = None


class WaitSpec(Struct, frozen=True):
    """The duration or the end of a Wait. Exactly one is set."""

    seconds: Evaluator | None = None
    timestamp: Evaluator | None = None


class FailSpec(Struct, frozen=True):
    """The error and cause of a Fail."""

    error: Evaluator | None = None
    cause: Evaluator | None = None


class ParallelSpec(Struct, frozen=True):
    """The branches of a Parallel."""

    branches: tuple[Machine, ...]


class ReaderSpec(Struct, frozen=True):
    """The ItemReader of a distributed Map."""

    resource: str
    # Evaluates to Bucket, Key or Prefix, ...
    parameters: Evaluator
    # ReaderConfig as written: InputType, CSVHeaderLocation, CSVHeaders, CSVDelimiter, MaxItems, MaxItemsPath, ...
    config: Json
    items_max: Evaluator | None = None


class BatcherSpec(Struct, frozen=True):
    """The ItemBatcher of a distributed Map."""

    items_max: Evaluator | None = None
    bytes_max: Evaluator | None = None
    batch_input: Evaluator | None = None


class WriterSpec(Struct, frozen=True):
    """The ResultWriter of a distributed Map."""

    resource: str | None = None
    # Evaluates to Bucket and Prefix.
    parameters: Evaluator | None = None
    # WriterConfig as written: Transformation and OutputType.
    config: Json = None


class MapSpec(Struct, frozen=True):
    """The processor, the items and the limits of a Map."""

    processor: Machine
    # The JSON of the processor: executions of a distributed Map's iterations start from it.
    processor_definition: Json
    mode: MapMode = MapMode.INLINE
    execution_type: ExecutionType = ExecutionType.STANDARD
    items: Evaluator | None = None
    selector: Evaluator | None = None
    concurrency_max: Evaluator | None = None
    tolerated_failures: Evaluator | None = None
    tolerated_failure_percentage: Evaluator | None = None
    reader: ReaderSpec | None = None
    batcher: BatcherSpec | None = None
    writer: WriterSpec | None = None
    label: str | None = None


Spec: TypeAlias = TaskSpec | PassSpec | ChoiceSpec | WaitSpec | FailSpec | ParallelSpec | MapSpec


class State(Struct, frozen=True):
    """One state. A field that its type or language lacks is None."""

    name: str
    kind: StateType
    language: Language
    spec: Spec | None = None
    # None: the machine ends here.
    next: str | None = None
    # JSONPath only. An absent path is None and means "$".
    input_path: Evaluator | None = None
    parameters: Evaluator | None = None
    result_selector: Evaluator | None = None
    result_path: Reference | None = None
    output_path: Evaluator | None = None
    # "ResultPath": null: the state passes its input on.
    discards_result: bool = False
    # JSONata only.
    arguments: Evaluator | None = None
    output: Evaluator | None = None
    # Both languages.
    assign: Evaluator | None = None
    retry: tuple[Retrier, ...] = ()
    catch: tuple[Catcher, ...] = ()


class Machine(Struct, frozen=True):
    """A state machine, a branch of a Parallel, or the processor of a Map."""

    start_at: str
    states: dict[str, State]
    timeout_seconds: float | None = None
    comment: str = ""
