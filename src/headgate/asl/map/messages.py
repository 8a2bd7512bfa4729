"""Messages of a distributed Map: the inputs and results of its activities and of its worker executions."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import Struct, field

from headgate.asl.expressions.scope import Json
from headgate.asl.map.item_readers import ItemReading
from headgate.asl.runtime.frame import Frame
from headgate.asl.runtime.interpreter import DATA_BYTES_MAX, Limits


class FailureTolerance(Struct, frozen=True, omit_defaults=True):
    """The failed items that a map run tolerates. Without either limit, none."""

    count: int | None = None
    percentage: float | None = None

    def is_exceeded(self, failed: int, total: int) -> bool:
        """Whether `failed` of `total` items are more than tolerated."""
        if self.count is None and self.percentage is None:
            return failed > 0
        too_many = self.count is not None and failed > self.count
        return too_many or (self.percentage is not None and 100 * failed > self.percentage * total)


class MapRunOrder(Struct, frozen=True, omit_defaults=True):
    """The settings that all iterations of a map run share."""

    run_id: str
    # The machine name of the iterations' executions: the parent machine and the label of the state.
    machine: str
    # The definition of the processor, as JSON text.
    definition: str
    is_express: bool = False
    # Whether one iteration receives all items of its chunk, with `batch_input`.
    is_batched: bool = False
    batch_input: Json = None
    concurrency: int = 1
    tolerance: FailureTolerance = FailureTolerance()
    limits: Limits = Limits()
    # As in the request of the execution that the Map belongs to.
    is_routed: bool = False
    case: str = ""


class ItemSelection(Struct, frozen=True):
    """The scope of an ItemSelector besides the item."""

    # The definition that contains the state, as JSON text.
    definition: str
    state: str
    data: Json
    input: Json
    context: Mapping[str, Json]
    variables: Mapping[str, Json] = {}


class SplitOrder(Struct, frozen=True, omit_defaults=True):
    """The items of a map run, and how to split them into chunks."""

    run_id: str
    group: str
    execution_id: str
    is_express: bool = False
    is_batched: bool = False
    # Exactly one of the two is set.
    items: list[Json] | None = None
    reading: ItemReading | None = None
    # Whether the items are the members of an object, each with a Key and a Value.
    is_of_object: bool = False
    selection: ItemSelection | None = None
    item_bytes_max: int = DATA_BYTES_MAX
    # Limits of one batch; 0 is unlimited.
    items_max: int = 0
    bytes_max: int = 0
    # Whether to repeat the iterations of an earlier run that did not succeed.
    is_redriven: bool = False


class SplitCounts(Struct, frozen=True):
    """The size of a map run after its split."""

    items: int
    chunks: int


class IterationOutcome(Struct, frozen=True, omit_defaults=True):
    """The output or the error of an iteration."""

    output: Json = None
    error: str | None = None
    cause: str = ""


class MapRunVerdict(enum.StrEnum):
    """What a worker of a map run does next."""

    GO_ON = "GO_ON"
    WAIT = "WAIT"  # The map run is paused.
    DONE = "DONE"  # No chunk is left to claim.
    EXCEEDED = "EXCEEDED"
    CANCELLED = "CANCELLED"


class Iteration(Struct, frozen=True, omit_defaults=True):
    """An iteration to run as the execution `execution_id`."""

    chunk_id: str
    token: str
    execution_id: str
    input: Json = None
    # The position at which an earlier attempt stopped.
    resume: Frame | None = None
    events: int = 0
    redrive_count: int = 0


class IterationReport(Struct, frozen=True):
    """The outcome of the iteration of a chunk."""

    chunk_id: str
    token: str
    outcome: IterationOutcome = field(name="ending")


class NextIteration(Struct, frozen=True, omit_defaults=True):
    """The next iteration for a worker, if there is one."""

    verdict: MapRunVerdict
    iteration: Iteration | None = None


class MapRunProgress(Struct, frozen=True):
    """The counts of a map run, and whether to continue it."""

    verdict: MapRunVerdict
    open: int
    items: int
    items_failed: int
