"""The definition: a state machine as it was compiled, ready to be run. `compiling` makes it from its JSON."""

from __future__ import annotations

import enum
from typing import TypeAlias

from msgspec import Struct

from headgate.asl.expressions.references import Reference
from headgate.asl.expressions.scope import Evaluator, Json


class Language(enum.StrEnum):
    """How a state's fields are written."""

    JSONPATH = "JSONPath"
    JSONATA = "JSONata"


class Kind(enum.StrEnum):
    """The types of states."""

    TASK = "Task"
    PASS = "Pass"
    CHOICE = "Choice"
    WAIT = "Wait"
    SUCCEED = "Succeed"
    FAIL = "Fail"
    PARALLEL = "Parallel"
    MAP = "Map"


class Jitter(enum.StrEnum):
    """Whether the pauses of a Retry are drawn at random."""

    FULL = "FULL"
    NONE = "NONE"


class MapMode(enum.StrEnum):
    """Where the iterations of a Map run."""

    INLINE = "INLINE"
    DISTRIBUTED = "DISTRIBUTED"


class ExecutionType(enum.StrEnum):
    """What the iterations of a distributed Map are: durable executions, or at-least-once runs in memory."""

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
    # JSONPath: where the error goes in the state's input; None leaves the input as it is ("ResultPath": null).
    result_path: Reference | None = None
    # JSONata: what goes on to the next state.
    output: Evaluator | None = None
    assign: Evaluator | None = None


class TaskSpec(Struct, frozen=True):
    """What a Task calls, and for how long it may."""

    resource: str
    # The function that lambda:invoke names, if the definition fixes it.
    function: str = ""
    timeout_seconds: Evaluator | None = None
    heartbeat_seconds: Evaluator | None = None


class PassSpec(Struct, frozen=True):
    """What a Pass gives in place of its input."""

    result: Evaluator | None = None


class Rule(Struct, frozen=True):
    """One entry of Choices."""

    condition: Evaluator
    next: str
    assign: Evaluator | None = None
    output: Evaluator | None = None


class ChoiceSpec(Struct, frozen=True):
    """Where a Choice may go."""

    rules: tuple[Rule, ...]
    default: str | None = None


class WaitSpec(Struct, frozen=True):
    """How long a Wait waits: for seconds, or until a moment. One of the two is set."""

    seconds: Evaluator | None = None
    timestamp: Evaluator | None = None


class FailSpec(Struct, frozen=True):
    """What a Fail ends with."""

    error: Evaluator | None = None
    cause: Evaluator | None = None


class ParallelSpec(Struct, frozen=True):
    """What a Parallel runs beside each other."""

    branches: tuple[Machine, ...]


class ReaderSpec(Struct, frozen=True):
    """Where a distributed Map takes its items from when they are not in its input."""

    resource: str
    # Evaluates to Bucket, Key or Prefix, ...
    parameters: Evaluator
    # ReaderConfig as written: InputType, CSVHeaderLocation, CSVHeaders, CSVDelimiter, MaxItems, MaxItemsPath, ...
    config: Json
    items_max: Evaluator | None = None


class BatcherSpec(Struct, frozen=True):
    """How a distributed Map puts items together for one iteration."""

    items_max: Evaluator | None = None
    bytes_max: Evaluator | None = None
    batch_input: Evaluator | None = None


class WriterSpec(Struct, frozen=True):
    """Where a distributed Map writes its results to."""

    resource: str | None = None
    # Evaluates to Bucket and Prefix.
    parameters: Evaluator | None = None
    # WriterConfig as written: Transformation and OutputType.
    config: Json = None


class MapSpec(Struct, frozen=True):
    """What a Map runs for every item."""

    processor: Machine
    # The same as the JSON it was compiled from: iterations of a distributed Map are started from it.
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
    """One state. Fields that its type or language does not have are None."""

    name: str
    kind: Kind
    language: Language
    spec: Spec | None = None
    # None where the machine ends.
    next: str | None = None
    # JSONPath. None is "$" for paths that are absent; `is_discarding` fields say that a path is null.
    input_path: Evaluator | None = None
    parameters: Evaluator | None = None
    result_selector: Evaluator | None = None
    result_path: Reference | None = None
    output_path: Evaluator | None = None
    # "ResultPath": null, which leaves the input as it is.
    discards_result: bool = False
    # JSONata.
    arguments: Evaluator | None = None
    output: Evaluator | None = None
    # Either.
    assign: Evaluator | None = None
    retry: tuple[Retrier, ...] = ()
    catch: tuple[Catcher, ...] = ()


class Machine(Struct, frozen=True):
    """A state machine, or a branch or an iteration of one."""

    start_at: str
    states: dict[str, State]
    timeout_seconds: float | None = None
    comment: str = ""
