"""What `headgate execution show` says of what an execution waits for: a sentence for each kind."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from headgate.cli.durable.execution import _wait_text
from headgate.cli.tracebacks import show_traceback
from headgate.durable.client.blocked_on import Wait

AT = "2026-11-19T02:30:12.000Z"
SENTENCES: dict[str, tuple[dict[str, Any], str]] = {
    "activity": ({"name": "charge", "state": "running", "attempt": 2}, "activity charge: running, attempt 2"),
    "timer": ({"due_at": AT}, "timer at 2026-11-19 02:30:12Z"),
    "start": ({"due_at": AT}, "start at 2026-11-19 02:30:12Z"),
    "signal": ({"name": "approved"}, "signal approved"),
    "child": ({"execution_id": "c", "workflow": "nap", "status": "RUNNING"}, "child c (nap, RUNNING)"),
    "worker": ({"fact": "no live worker serves workflow pay"}, "a worker: no live worker serves workflow pay"),
    "retry": (
        {"failures": 2, "error": "KeyError: x", "next_try_at": AT},
        "a retry at 2026-11-19 02:30:12Z; 2 attempts failed: KeyError: x",
    ),
    "redrive": (
        {"failures": 5, "error": "KeyError: x"},
        "a worker with other code, or a redrive; 5 attempts failed: KeyError: x",
    ),
    "message": ({"fact": "an update, a cancellation or a signal"}, "an update, a cancellation or a signal"),
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_wait__of_each_kind__is_a_sentence(kind: str) -> None:
    wait, said = SENTENCES[kind]

    assert _wait_text({"kind": kind, **wait}) == said


def test_wait__of_every_kind_that_the_server_knows__has_its_sentence() -> None:
    assert {kind.__struct_config__.tag for kind in get_args(Wait)} <= set(SENTENCES)


def test_wait__for_an_activity__says_everything_that_keeps_it() -> None:
    wait = {"kind": "activity", "name": "charge", "state": "queued", "attempt": 1, "attempts_max": 3, "next_try_at": AT}
    more = {"worker": "wrk_1", "last_error": "ValueError: no", "no_worker": True}

    assert _wait_text({**wait, **more}) == (
        "activity charge: queued, attempt 1 of 3, next attempt 2026-11-19 02:30:12Z by wrk_1; "
        "last error: ValueError: no; no live worker serves it"
    )


def test_wait__for_a_child_that_is_not_there_yet__says_so() -> None:
    wait = {"kind": "child", "execution_id": "c", "workflow": "nap", "status": ""}

    assert _wait_text(wait) == "child c (nap, not started)"


def test_traceback__of_an_error_with_a_cause__marks_own_frames_and_shows_both(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = '  File "/srv/shop/app.py", line 12, in pay\n    charge()'
    library = '  File "/usr/lib/python3.11/json.py", line 5, in loads\n    fail()'
    cause = {"type": "KeyError", "message": "'amount'", "trace": library}

    show_traceback("charge, attempt 1", {"type": "ValueError", "message": "no", "trace": own, "cause": cause})

    assert capsys.readouterr().out.splitlines() == [
        "",
        "charge, attempt 1:",
        "ValueError: no",
        *[f"> {line}" for line in own.splitlines()],
        "caused by KeyError: 'amount'",
        *[f"  {line}" for line in library.splitlines()],
    ]


def test_traceback__of_an_error_without_one__prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show_traceback("charge", {"type": "TimeoutError", "message": "", "trace": ""})

    assert capsys.readouterr().out == ""
