"""A probe runner on real libraries, with a clock and secrets of the test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.clock import Clock, SystemClock
from headgate.durable.bus.egress_policy import Destinations, Resolve, system_resolve
from headgate.file_roots import FileRoots, file_roots
from headgate.pipelines.probes.definitions import load_probe_text
from headgate.pipelines.probes.endpoints import DatabaseHosts
from headgate.pipelines.probes.files import FileLooks
from headgate.pipelines.probes.http import HttpLooks
from headgate.pipelines.probes.model import Probe
from headgate.pipelines.probes.runner import ProbeRunner
from headgate.pipelines.probes.sql import SqlLooks
from headgate.pipelines.probes.tables import TableLooks
from headgate.triggers.aws.clients import AwsClients
from headgate.triggers.http.client import TriggerHttpClient
from headgate.triggers.secret_sources import SecretSources


def runner(
    roots: Path | FileRoots,
    *,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
    aws: AwsClients | None = None,
    own_objects: tuple[str, str] | None = None,
    destinations: Destinations | None = None,
    resolve: Resolve = system_resolve,
) -> ProbeRunner:
    clock = clock if clock is not None else SystemClock()
    files = roots if isinstance(roots, FileRoots) else file_roots([roots])
    allowed = destinations if destinations is not None else Destinations()
    return ProbeRunner(
        clock,
        SecretSources(environ or {}),
        sql=SqlLooks(clock, files, DatabaseHosts(allowed, resolve)),
        files=FileLooks(files, None if aws is None else lambda: aws, own_objects),
        tables=TableLooks(files),
        http=HttpLooks(TriggerHttpClient(clock, allowed, resolve=resolve)),
    )


def probe(**fields: Any) -> Probe:
    """Return a probe as a YAML file would define it."""
    import json

    loaded = load_probe_text(json.dumps({"id": "pr", **fields}), "probe.json")
    assert not loaded.problems, [problem.text() for problem in loaded.problems]
    return loaded.probes[0].probe
