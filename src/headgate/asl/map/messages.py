"""Map orders: what a distributed Map asks of the activities and executions that do its iterations."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import Struct

from headgate.asl.expressions.scope import Json
from headgate.asl.map.item_readers import Reading
from headgate.asl.runtime.interpreter import DATA_BYTES_MAX, Limits
from headgate.asl.runtime.resume_point import Frame


class Tolerance(Struct, frozen=True, omit_defaults=True):
    """How many items may fail before the map run does. Without either, none may."""

    count: int | None = None
    percentage: float | None = None

    def is_exceeded(self, failed: int, total: int) -> bool:
        """Whether so many failed items are too many."""
        if self.count is None and self.percentage is None:
            return failed > 0
        too_many = self.count is not None and failed > self.count
        return too_many or (self.percentage is not None and 100 * failed > self.percentage * total)


class MapOrder(Struct, frozen=True, omit_defaults=True):
    """What is the same for all iterations of a map run."""

    run_id: str
    # The name that the executions of the iterations go by: that of the machine, and the label of the state.
    machine: str
    # The processor's, as JSON text.
    definition: str
    is_express: bool = False
    # Whether an iteration is given all items of its chunk, with `batch_input` if there is one.
    is_batched: bool = False
    batch_input: Json = None
    concurrency: int = 1
    tolerance: Tolerance = Tolerance()
    limits: Limits = Limits()


class Selection(Struct, frozen=True):
    """What an ItemSelector looks at besides the item."""

    # The definition in which the state is, as JSON text.
    definition: str
    state: str
    data: Json
    input: Json
    context: Mapping[str, Json]
    variables: Mapping[str, Json] = {}


class SplitOrder(Struct, frozen=True, omit_defaults=True):
    """Where the items of a map run come from, and how they become iterations."""

    run_id: str
    group: str
    execution_id: str
    is_express: bool = False
    is_batched: bool = False
    # One of the two.
    items: list[Json] | None = None
    reading: Reading | None = None
    # Whether the items are the members of an object, each with its Key and its Value.
    is_of_object: bool = False
    selection: Selection | None = None
    item_bytes_max: int = DATA_BYTES_MAX
    # Of one batch; 0 is without limit.
    items_max: int = 0
    bytes_max: int = 0
    # Whether iterations of an earlier run that did not succeed are to be done again.
    is_redriven: bool = False


class Split(Struct, frozen=True):
    """What a map run was split into."""

    items: int
    chunks: int


class Ending(Struct, frozen=True, omit_defaults=True):
    """How an iteration ended: with an output, or with an error."""

    output: Json = None
    error: str | None = None
    cause: str = ""


class Verdict(enum.StrEnum):
    """What whoever does iterations is to do next."""

    GO_ON = "GO_ON"
    WAIT = "WAIT"  # It is paused.
    DONE = "DONE"  # Nothing is left to begin.
    EXCEEDED = "EXCEEDED"
    CANCELLED = "CANCELLED"


class Iteration(Struct, frozen=True, omit_defaults=True):
    """An iteration that is to be done by the execution of this id."""

    chunk_id: str
    token: str
    execution_id: str
    input: Json = None
    # Where an earlier attempt has stopped.
    resume: Frame | None = None
    events: int = 0
    redrive_count: int = 0


class Report(Struct, frozen=True):
    """How the iteration of a chunk ended."""

    chunk_id: str
    token: str
    ending: Ending


class Given(Struct, frozen=True, omit_defaults=True):
    """What a lane is given to do."""

    verdict: Verdict
    iteration: Iteration | None = None


class Standing(Struct, frozen=True):
    """How a map run stands."""

    verdict: Verdict
    open: int
    items: int
    items_failed: int
