"""`make bench`: run every benchmark, or those named, and print one table."""

from __future__ import annotations

import sys

from bench import (
    asl,
    checks,
    commands,
    concurrent,
    dbt_upload,
    durable,
    expected_bands,
    fanout,
    fanout_million,
    function_starts,
    health,
    health_idle,
    health_load,
    idle_calls,
    load_model,
    overload,
    pages,
    pipelines,
    probes,
    processes,
    scale,
    serving_processes,
    single,
    startup,
)
from bench.measure import Figure, show

GROUPS = {
    "single": single.run,
    "concurrent": concurrent.run,
    "processes": processes.run,
    "scale": scale.run,
    "startup": startup.run,
    "function_starts": function_starts.run,
    "durable": durable.run,
    "fanout": fanout.run,
    "fanout_million": fanout_million.run,
    "health": health.run,
    "health_load": health_load.run,
    "health_load_mixed": health_load.run_mixed,
    "health_rates": health_load.run_rates,
    "health_idle": health_idle.run,
    "serving_processes": serving_processes.run,
    "overload": overload.run,
    "overload_grpc": overload.run_grpc,
    "asl": asl.run,
    "pipelines": pipelines.run,
    "commands": commands.run,
    "probes": probes.run,
    "dbt_upload": dbt_upload.run,
    "expected_bands": expected_bands.run,
    "checks": checks.run,
    "pages": pages.run,
    "load_model": load_model.run,
    "idle_calls": idle_calls.figures,
    "load_model_before": load_model.run_before,
    "load_model_after": load_model.run_after,
}
# Parts of other groups, which run only when they are named.
PARTS = {
    "fanout_million",
    "overload_grpc",
    "health_load_mixed",
    "health_rates",
    "load_model_before",
    "load_model_after",
}


def main() -> int:
    names = sys.argv[1:] or [name for name in GROUPS if name not in PARTS]
    figures: list[Figure] = []
    for name in names:
        print(f"running {name} …", file=sys.stderr, flush=True)
        figures += GROUPS[name]()
    print(show(figures))
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
