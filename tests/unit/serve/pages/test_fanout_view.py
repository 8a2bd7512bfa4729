"""Fan-out page: the parts of its bar sum to the whole, and its sentence states what is the matter."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.serve.pages.work.fanouts import buckets, item_bars, sentence


def fanout(status: str, *, completed: int = 0, failed: int = 0, total: int = 10, **more: Any) -> dict[str, Any]:
    chunks = {"completed": completed, "failed": failed, "total": total}
    return {"status": status, "chunks": chunks, "counts": {"running": 2}, "split_error": None, "paused_at": None,
            "stall": None, "exceeded_at": None, **more}  # fmt: skip


def test_buckets__all_states__sum_to_the_width_in_order() -> None:
    bars = buckets({"done": 5, "dead": 2, "running": 1, "queued": 2}, 10)

    assert [each.name for each in bars] == ["done", "dead", "running", "queued"]
    assert sum(each.width for each in bars) == pytest.approx(1000)
    assert [each.x for each in bars] == [0, 500, 700, 800]


def test_sentence__only_items_failed__counts_them() -> None:
    said = sentence(fanout("PARTIAL", completed=10, items={"failed": 3, "total": 1000}))

    assert said == "3 of 1,000 items failed. Fix the cause, then redrive them."


def test_buckets__nothing_split_yet__is_empty() -> None:
    assert buckets({}, 0) == []


def test_sentence__some_failed__names_the_remedy() -> None:
    said = sentence(fanout("PARTIAL", completed=8, failed=2))

    assert said == "2 of 10 chunks failed. Fix the cause, then redrive them."


def test_sentence__running_and_paused__says_both() -> None:
    said = sentence(fanout("RUNNING", completed=3, paused_at="2026-01-01T00:00:00Z"))

    assert said == "It is paused; 3 of 10 chunks are done, 2 running."


def test_sentence__the_split_failed__says_why() -> None:
    assert sentence(fanout("SPLITTING", split_error="no such file")) == "The split failed: no such file"


def test_sentence__the_slow_lane_goes_on_and_nothing_failed__names_the_deferred_items() -> None:
    said = sentence(fanout("PARTIAL", completed=10, items={"failed": 0, "deferred": 4, "total": 1000}))

    assert said == "10 of 10 chunks are done; 4 items are deferred to the slow lane."


@pytest.mark.parametrize(("is_finished", "left"), [(False, "open"), (True, "not run")])
def test_item_bars__items_are_left__are_open_until_the_end(is_finished: bool, left: str) -> None:
    items = {"ok": 7, "failed": 1, "deferred": 0, "open": 2, "total": 10}

    bars = item_bars({"items": items, "is_finished": is_finished})

    assert [(bar.name, bar.count) for bar in bars] == [("ok", 7), ("failed", 1), (left, 2)]
