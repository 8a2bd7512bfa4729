"""The soak in a short form, so that it still works when its long form is wanted."""

from __future__ import annotations

from pathlib import Path

from tests.soak import crashes


def test_crashes__two_kills__loses_nothing_and_refuses_nothing(tmp_path: Path) -> None:
    figures = crashes.run(tmp_path, 2)
    assert [each for each in figures if not each.holds] == []
