"""Fan-out trigger: runs a fan-out on our workers, with the run's key as its id."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from headgate.errors import (
    ConflictError,
    DefinitionError,
    NotFoundError,
    OutcomeUnknownError,
    TransientError,
    UserError,
)
from headgate.fanout.core.splitter import Order
from headgate.fanout.hg_map import CHUNKS_USUAL
from headgate.fanout.model.rows import PIPELINE_CALLER, Fanout, Policy
from headgate.fanout.model.sources import LinesSource, ListSource, RangeSource, Source
from headgate.fanout.model.states import FanoutStatus
from headgate.fanout.service import FanoutService
from headgate.file_roots import FileRoots
from headgate.triggers.config import Config, check_name, exactly_one
from headgate.triggers.contract import (
    FailureCategory,
    Job,
    JobState,
    PollResult,
    Started,
    TriggerFailedError,
    external_id_of,
    failed,
    running_here,
)

_CHUNK_LINES: Final = 1000


class FanoutConfig(Config, frozen=True):
    """A handler, `module:function`, and its items: a list, a range of numbers, or the lines of a file."""

    handler: str
    items: list[Any] | None = None
    # Start, and end (exclusive).
    range: tuple[int, int] | None = None
    lines: str | None = None
    chunk_size: int | None = None
    group: str | None = None
    params: dict[str, Any] = {}
    policy: Policy = Policy()
    # Whether the run succeeds although chunks failed.
    allow_partial: bool = False

    def __post_init__(self) -> None:
        check_name("handler", self.handler)
        module, colon, function = self.handler.partition(":")
        if not (module and colon and function):
            raise ValueError(f"handler {self.handler[:80]!r}: write module:function, such as prices:update")
        exactly_one(items=self.items, range=self.range, lines=self.lines)
        if self.range is not None and self.range[1] < self.range[0]:
            raise ValueError("range: the end must not be before the start")
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError("chunk_size: use a whole number from 1 on")


class FanoutKind:
    """Fan-outs."""

    name: ClassVar[str] = "fan-out"
    config_type: ClassVar[type[FanoutConfig]] = FanoutConfig
    secret_fields: ClassVar[frozenset[str]] = frozenset()
    is_local: ClassVar[bool] = False

    def __init__(self, fanouts: FanoutService) -> None:
        self._fanouts = fanouts

    def start(self, job: Job[FanoutConfig]) -> Started:
        config, order = job.config, job.order
        try:
            source = _source(config, self._fanouts.access.files)
            asked = Order(
                group=config.group or order.pipeline,
                chunk_size=config.chunk_size or _usual_size(source),
                handler=config.handler,
                params=config.params,
                policy=config.policy,
                submitted_by=f"{PIPELINE_CALLER}{order.pipeline}",
            )
            fanout = self._fanouts.splitter.split(asked, source, run_id=job.key)
        except (TransientError, OutcomeUnknownError) as exc:
            raise TriggerFailedError(str(exc), FailureCategory.TRANSIENT) from exc
        except (UserError, ConflictError) as exc:
            raise TriggerFailedError(str(exc), FailureCategory.PERMANENT) from exc
        return running_here(fanout.run_id)

    def poll(self, job: Job[FanoutConfig], metadata: Mapping[str, str]) -> PollResult:
        fanout = self._fanouts.queries.find(external_id_of(job.order, metadata))
        if fanout is None:
            return failed(FailureCategory.PERMANENT, f"fan-out {job.key}: it does not exist")
        if not fanout.is_finished:
            return PollResult(JobState.RUNNING, reason=fanout.status.value)
        if fanout.status is FanoutStatus.SUCCEEDED:
            tolerated = f"tolerated failures: {fanout.chunks_failed}" if fanout.chunks_failed else ""
            return PollResult(JobState.SUCCEEDED, reason=tolerated)
        if fanout.status is FanoutStatus.PARTIAL and job.config.allow_partial:
            return PollResult(JobState.SUCCEEDED, reason="some chunks failed")
        # Its chunks have used all their attempts, so that a retry of the whole run does not help.
        is_cancelled = fanout.status is FanoutStatus.CANCELLED
        category = FailureCategory.TRANSIENT if is_cancelled else FailureCategory.PERMANENT
        return failed(category, _failure_text(fanout))

    def cancel(self, job: Job[FanoutConfig], metadata: Mapping[str, str]) -> None:
        try:
            self._fanouts.control.cancel(
                external_id_of(job.order, metadata), by=f"pipeline {job.order.pipeline}", reason="its run was cancelled"
            )
        except OutcomeUnknownError as exc:
            raise TriggerFailedError(str(exc), FailureCategory.TRANSIENT) from exc
        except (ConflictError, NotFoundError):
            # It has ended already.
            return


def _source(config: FanoutConfig, files: FileRoots | None) -> Source:
    if config.items is not None:
        return ListSource(config.items)
    if config.range is not None:
        return RangeSource(*config.range)
    assert config.lines is not None, "one of them is given"
    path = Path(config.lines)
    if not path.is_absolute():
        raise DefinitionError(
            f"lines {config.lines[:120]!r}: there is no project folder; set project, or give the whole path"
        )
    return LinesSource(path, files)


def _failure_text(fanout: Fanout) -> str:
    """Return how a fan-out ended, and the command that repairs it and so completes its run."""
    head = f"fan-out {fanout.run_id} ended as {fanout.status.value}"
    if fanout.status is FanoutStatus.CANCELLED:
        return f"{head}; to complete this run: headgate fanout redrive {fanout.run_id} --all"
    if fanout.exceeded_at is not None:
        return (
            f"{head}: {fanout.reason}; see: headgate fanout failures {fanout.run_id}; to complete this run after a "
            f"fix: headgate fanout redrive {fanout.run_id} --all"
        )
    failed = f"{fanout.chunks_failed} of {fanout.chunks_total} chunks"
    if not fanout.chunks_failed and fanout.counts.get("items_failed"):
        failed = f"{fanout.counts['items_failed']} of {fanout.items_total} items"
    return (
        f"{head}, {failed} failed; see: headgate fanout failures "
        f"{fanout.run_id}; to complete this run after a fix: headgate fanout redrive {fanout.run_id} --failed"
    )


def _usual_size(source: Source) -> int:
    total = source.total()
    return _CHUNK_LINES if total is None else max(1, math.ceil(total / CHUNKS_USUAL))
