"""Run indexing: what an earlier release stored appears in the lists over all pipelines, once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.pipelines.enums import RunStatus
from headgate.pipelines.operations.backfill_plans import BackfillSpec
from headgate.pipelines.operations.backfills import Backfills
from headgate.pipelines.operations.run_indexing import RunIndexing
from headgate.pipelines.runs.run_index import RunFilter
from headgate.store.catalogue.tables import PIPELINES, RUN_COPY
from headgate.store.model.schema import Key
from tests.pipeline_rig import DATE, Rig, pipeline, slot_of


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        made.define(pipeline())
        yield made


def strip_index(rig: Rig, key: Key) -> None:
    item = rig.store.get(PIPELINES, key, consistent=True)
    assert item is not None
    rig.store.put(PIPELINES, {name: value for name, value in item.items() if not name.startswith("GSI1")})


def test_index_once__rows_without_index_attributes__are_listed_again(rig: Rig) -> None:
    rig.push("silver", "landed", date=DATE)
    run = rig.run(slot_of())
    backfills = Backfills(rig.store, rig.clock, rig.ids)
    spec = BackfillSpec(pipeline_id="silver", schedule_id="stream", dates=(DATE,))
    backfill = backfills.create(spec, by="ana", reason="late")
    strip_index(rig, Key(f"RUN#{run.run_id}", "STATE"))
    strip_index(rig, RUN_COPY.key(pipeline_id="silver", run_id=run.run_id))
    strip_index(rig, Key("PIPELINE#silver", f"BACKFILL#{backfill.backfill_id}"))
    index = rig.stores.run_index
    assert index.ls(RunFilter()).runs == list(index.open_runs()) == []
    assert backfills.ls_all().backfills == []

    assert RunIndexing(rig.store).index_once(["silver"]) == 3
    assert RunIndexing(rig.store).index_once(["silver"]) == 0

    assert [each.run_id for each in index.ls(RunFilter()).runs] == [run.run_id]
    assert [each.run_id for each in index.open_runs()] == [run.run_id]
    assert [each.backfill_id for each in backfills.ls_all().backfills] == [backfill.backfill_id]
    assert rig.stores.runs.get(run.run_id) == run


def test_open_runs__run_that_ends__is_not_among_them(rig: Rig) -> None:
    rig.push("silver", "landed", date=DATE)
    run = rig.run(slot_of())
    assert [each.run_id for each in rig.stores.run_index.open_runs()] == [run.run_id]

    rig.pipelines.manual.cancel(run.run_id, by="ana", reason="no")
    rig.pump()

    assert list(rig.stores.run_index.open_runs()) == []
    (listed,) = rig.stores.run_index.ls(RunFilter(statuses=frozenset({RunStatus.CANCELLED}))).runs
    assert listed.run_id == run.run_id
