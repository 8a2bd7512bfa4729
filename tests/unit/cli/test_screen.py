"""Progress on a terminal: status and text are whole, whatever its width."""

from __future__ import annotations

import re

import pytest

from headgate.cli.screen import Step, open_screen

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
@pytest.mark.parametrize("followed", ["nightly", "a-fan-out-whose-name-is-long-2026-03-03"])
def test_bars__any_width__have_the_whole_status_and_text(
    columns: int, followed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    # A terminal, as rich sees it.
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = "0/20 completed, 2 running, 18 pending; remaining unknown: 0 chunks are completed; an estimate needs 3"

    with open_screen([followed], as_json=False, is_counted=True) as screen:
        screen.show(Step(followed, "07:00:00", "RUNNING", text, done=0, total=20))

    shown = " ".join(_CONTROL.sub(" ", capsys.readouterr().out).split())
    assert "…" not in shown
    assert "RUNNING" in shown
    assert text in shown
