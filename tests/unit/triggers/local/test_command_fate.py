"""The fate of a command: decided from its record and the processes of this moment."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.triggers.local.command_fate import Begun, EndCause, Ended, Fate, Sighting, decide_fate, may_signal

BEGUN = Begun(
    pid=500, pid_start=7_000, supervisor=499, supervisor_start=6_990, boot_id="b1", started_at_ms=1, ends_by_ms=2
)
ENDED = Ended(exit_code=0, cause=EndCause.EXITED, ended_at_ms=3)
NOW = Sighting(boot_id="b1", pid_start=7_000, supervisor_start=6_990, is_locked=True)
GONE = replace(NOW, pid_start=None, supervisor_start=None, is_locked=False)


@pytest.mark.parametrize(
    ("begun", "ended", "sighting", "fate"),
    [
        (BEGUN, None, NOW, Fate.RUNNING),
        (BEGUN, ENDED, NOW, Fate.ENDED),
        (BEGUN, ENDED, GONE, Fate.ENDED),
        (None, None, NOW, Fate.STARTING),
        (None, None, GONE, Fate.NOT_STARTED),
        # The job is gone, and its supervisor is about to record that.
        (BEGUN, None, replace(NOW, pid_start=None), Fate.RUNNING),
        # The supervisor was killed.
        (BEGUN, None, replace(NOW, supervisor_start=None), Fate.ORPHANED),
        # Only a descendant is left.
        (BEGUN, None, replace(GONE, is_locked=True), Fate.ORPHANED),
        (BEGUN, None, GONE, Fate.LOST),
        # Other processes have the ids now.
        (BEGUN, None, replace(GONE, pid_start=9_000, supervisor_start=9_001), Fate.LOST),
        # The machine restarted: the same ids and even the same ticks say nothing.
        (BEGUN, None, replace(NOW, boot_id="b2"), Fate.REBOOTED),
        (BEGUN, ENDED, replace(NOW, boot_id="b2"), Fate.ENDED),
        # A machine that gives no start of a process: only the lock counts.
        (replace(BEGUN, pid_start=None, supervisor_start=None), None, GONE, Fate.LOST),
    ],
)
def test_decide_fate__record_and_processes__is_found(
    begun: Begun | None, ended: Ended | None, sighting: Sighting, fate: Fate
) -> None:
    assert decide_fate(begun, ended, sighting) is fate


@pytest.mark.parametrize(
    ("sighting", "allowed"),
    [
        (NOW, True),
        # The leader is gone; the group's id is not reused while the group exists.
        (replace(NOW, pid_start=None), True),
        (replace(NOW, pid_start=9_000), False),
        (replace(NOW, boot_id="b2"), False),
    ],
)
def test_may_signal__reused_id_or_another_boot__never(sighting: Sighting, *, allowed: bool) -> None:
    assert may_signal(BEGUN, sighting) is allowed
