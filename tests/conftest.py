"""What holds for every test: the environment of the machine does not leak in."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove settings and credentials, so that a test sees only what it sets itself."""
    for name in [name for name in os.environ if name.startswith(("HEADGATE_", "AWS_"))]:
        monkeypatch.delenv(name)
