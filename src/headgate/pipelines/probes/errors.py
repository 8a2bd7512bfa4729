"""Probe failures: a probe that could not look, with a category. The text never has a secret."""

from __future__ import annotations

from headgate.pipelines.enums import FailureCategory


class ProbeFailedError(Exception):
    """A probe could not see what it looks at."""

    def __init__(self, message: str, category: FailureCategory = FailureCategory.TRANSIENT) -> None:
        super().__init__(message)
        self.category = category
