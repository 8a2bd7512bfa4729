"""Small machines, and a process that dies at each of its calls to the store in turn: the outcome is always the same.

The outcome is the status, the output, the error and the states that were entered, as the history of Step Functions
has them. What it must be is taken from a run in which nothing goes wrong.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.durable.replay import sandbox
from tests.simulation.asl_stories import STORIES, Telling, new_machine, undisturbed
from tests.simulation.durable_processes import Fault

# Also dies at every read. Read here, because tests themselves see no setting of the machine.
IS_THOROUGH = "HEADGATE_TEST_SEEDS" in os.environ
WRITES = frozenset({"put", "update", "delete", "transact", "transact_many", "batch_write"})

every_story = pytest.mark.parametrize("name", STORIES)


def disturb(template: Path, folder: Path, name: str, *, crash: bool, is_done: bool) -> None:
    """Run a story once for each call to the store, with that call going wrong."""
    sandbox.install()
    story = STORIES[name]
    undisturbed_telling, expected, calls = undisturbed(template, folder / f"{name}-undisturbed", story)
    assert sum(call in WRITES for call in calls) >= 5, "the story has more writes than that"
    # What a process leaves behind that dies before or after a read is what it left behind after its last write.
    reads_count = IS_THOROUGH or (name == "map" and not crash and not is_done)
    for number, call in enumerate(calls, start=1):
        if call not in WRITES and not reads_count:
            continue
        telling = Telling(template, folder / f"{name}-{number}", story)
        fault = Fault(number, crash=crash, is_done=is_done)
        telling.live(fault)
        if not telling.is_over():
            telling.live()
        assert telling.end() == expected, f"{fault} ({call})"
        again = telling.effects() - undisturbed_telling.effects()
        assert not undisturbed_telling.effects() - telling.effects(), f"{fault} ({call}): something was not done"
        assert set(again.values()) <= {1}, f"{fault} ({call}): done more than once again: {again}"
        telling.machine.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_machine(tmp_path_factory.mktemp("machine"))


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@every_story
def test_crash__at_every_call_to_the_store__the_same_outcome(
    template: Path, tmp_path: Path, name: str, is_done: bool
) -> None:
    disturb(template, tmp_path, name, crash=True, is_done=is_done)


@pytest.mark.parametrize("is_done", [False, True], ids=["refused", "unknown"])
@every_story
def test_store_busy__at_every_call__the_same_outcome(template: Path, tmp_path: Path, name: str, is_done: bool) -> None:
    """The process lives on: the caller gets that the store is busy, or never learns how the call ended."""
    disturb(template, tmp_path, name, crash=False, is_done=is_done)
