"""Trait API: push trait results, list the latest, and show their history."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from headgate.clock import epoch_ms
from headgate.durable.model.duration import seconds
from headgate.errors import NotFoundError
from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.due_checks import date_named
from headgate.pipelines.service import PipelineService
from headgate.pipelines.traits.rows import TraitResult, checked_type
from headgate.pipelines.traits.traits import TraitPush
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.views import shown
from headgate.serve.rest.parameters import Duration
from headgate.serve.rest.pipelines.models import Date, ScheduleName
from headgate.serve.rest.pipelines.permissions import PUSH, READ
from headgate.store.model.requests import Write

TtlMeta = Meta(description="Time to live; 0 lasts until the next push.", examples=["1h", 3600])


class PushTrait(Struct, forbid_unknown_fields=True, kw_only=True):
    """A trait result; with a date for that period only, with a schedule for that schedule only."""

    status: Literal["PASS", "FAIL"]
    ttl: Annotated[Duration, TtlMeta] = "5m"
    value: Any = None
    reason: Annotated[str, Meta(max_length=1024, examples=["12000 rows"])] = ""
    date: Date | None = None
    schedule: ScheduleName | None = None


class TraitView(Struct, frozen=True, kw_only=True):
    """A trait. `status` is the effective one, STALE after expiry; `found` is the pushed or evaluated one."""

    trait_type: str
    status: TraitStatus
    found: TraitStatus
    reason: str
    value: Any
    category: FailureCategory | None
    date: str
    schedule_id: str
    evaluator: str
    by: str
    run_id: str
    duration_ms: int
    evaluated_at: str | None
    expires_at: str | None


class Traits(Struct, frozen=True):
    """The latest result of each trait, by type."""

    traits: list[TraitView]


class TraitLineView(Struct, frozen=True, kw_only=True):
    """Consecutive equal results, with their count."""

    status: TraitStatus
    first_at: str | None
    last_at: str | None
    count: int
    reason: str
    category: FailureCategory | None
    date: str
    schedule_id: str
    by: str


class TraitHistory(Struct, frozen=True):
    """History of a trait, latest first."""

    trait_type: str
    lines: list[TraitLineView]


def trait_operations(pipelines: PipelineService) -> list[Operation]:
    """Return the operations on traits."""
    return _Traits(pipelines).operations()


class _Traits:
    def __init__(self, pipelines: PipelineService) -> None:
        self._definitions = pipelines.definitions
        self._traits = pipelines.traits
        self._events = pipelines.event_writer
        self._clock = pipelines.clock

    def operations(self) -> list[Operation]:
        many, one = "/pipelines/{id}/traits", "/pipelines/{id}/traits/{type}"
        return [
            Operation("GET", many, "List traits", self.ls, {200: Traits}, rule=READ),
            Operation("GET", one, "Show a trait", self.show, {200: TraitView}, rule=READ),
            Operation("GET", f"{one}/history", "Show trait history", self.history, {200: TraitHistory}, rule=READ),
            Operation(
                "POST", one, "Push a trait result", self.push, {200: TraitView}, body=PushTrait, rule=PUSH,
                repeatable=True,
            ),
        ]  # fmt: skip

    def ls(self, call: Call[None, NoQuery]) -> Answer:
        self._definitions.get(call.path["id"])
        return Answer(Traits([self._view(each) for each in self._traits.ls(call.path["id"])]))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        found = self._traits.latest(call.path["id"], checked_type(call.path["type"]))
        if found is None:
            raise _no_trait(call)
        return Answer(self._view(found))

    def history(self, call: Call[None, NoQuery]) -> Answer:
        trait_type = checked_type(call.path["type"])
        lines = self._traits.history(call.path["id"], trait_type)
        if not lines:
            raise _no_trait(call)
        return Answer(TraitHistory(trait_type, [shown(TraitLineView, each) for each in lines]))

    def push(self, call: Call[PushTrait, NoQuery]) -> Answer:
        body, trait_type = call.body, checked_type(call.path["type"])
        pipeline = self._definitions.get(call.path["id"]).pipeline
        # Without a schedule it applies to all.
        date = "" if body.date is None else date_named(pipeline, body.date, body.schedule)
        push = TraitPush(
            status=body.status,
            ttl_seconds=seconds(body.ttl, name="ttl"),
            reason=body.reason,
            value=body.value,
            date=date,
            schedule_id=body.schedule or "",
            by=call.principal.name,
        )
        return Answer(self._view(self._traits.push(pipeline.id, trait_type, push, also=self._event_writes)))

    def _event_writes(self, result: TraitResult, _before: TraitResult | None) -> list[Write]:
        about = Slot(result.pipeline_id, result.schedule_id, result.date)
        detail = {"trait": result.trait_type, "status": result.status.value, "by": result.by}
        return self._events.writes(EventName.TRAIT_PUSHED, about, detail)

    def _view(self, result: TraitResult) -> TraitView:
        now_ms = epoch_ms(self._clock)
        return shown(
            TraitView,
            result,
            status=result.status_at(now_ms),
            found=result.status,
            reason=result.reason_at(now_ms),
        )


def _no_trait(call: Call[Any, Any]) -> NotFoundError:
    return NotFoundError(f"trait {call.path['type']} of {call.path['id'][:80]}: no result; push it, or evaluate it")
