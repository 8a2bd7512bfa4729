"""Severities of findings, and the targets that decide them. Commands import it: it loads nothing else."""

from __future__ import annotations

import enum


class Severity(enum.StrEnum):
    """What a finding means for the definition."""

    # It is refused.
    ERROR = "ERROR"
    # It is accepted, and probably does not do what was meant.
    WARNING = "WARNING"
    # It is accepted by AWS, and cannot be run here as it is.
    NOTE = "NOTE"


class Target(enum.StrEnum):
    """Where a definition is to run, which decides what is accepted."""

    LOCAL = "local"
    AWS = "aws"
