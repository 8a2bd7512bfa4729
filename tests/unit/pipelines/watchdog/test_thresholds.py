"""Thresholds of the watchdog: of the settings, and of a pipeline that names its own."""

from __future__ import annotations

from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import Pipeline, WatchdogSpec
from headgate.pipelines.watchdog.thresholds import DEFAULTS, Thresholds


def test_of__pipeline_with_its_own__replaces_those_that_it_names() -> None:
    own = WatchdogSpec(stuck=Seconds(7_200), patience=Seconds(86_400))

    found = Thresholds(stuck_seconds=600, lost_seconds=60).of(Pipeline(id="orders", watchdog=own))

    assert found == Thresholds(stuck_seconds=7_200, lost_seconds=60, patience_seconds=86_400)


def test_of__pipeline_without_any_or_none__are_those_of_the_settings() -> None:
    assert DEFAULTS.of(Pipeline(id="orders")) == DEFAULTS == DEFAULTS.of(None)
