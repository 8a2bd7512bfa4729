"""A run of a Prefect deployment from asking for it to the first line of its flow, with its server and a served flow.

Runs in the peers' environment and prints one `StartAnswer`.
"""
# The peers' packages are not in the environment that checks types.
# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from bench.peers.server import HOST, free_ports, server
from bench.peers.start_answer import WARM_UP_STARTS, StartAnswer, asked, tell

JOB = Path(__file__).with_name("prefect_job.py")
# The shortest it takes; it comes with ten.
POLL_SECONDS = 1
START_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.01


def main() -> None:
    folder, starts = asked()
    port, served_port = free_ports(2)
    os.environ["PREFECT_API_URL"] = f"http://{HOST}:{port}/api"
    runner = {
        "PREFECT_RUNNER_POLL_FREQUENCY": str(POLL_SECONDS),
        "PREFECT_RUNNER_SERVER_ENABLE": "true",
        "PREFECT_RUNNER_SERVER_PORT": str(served_port),
    }
    with ExitStack() as stack:
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
        stack.enter_context(server(command, port=port, log=folder / "server.log"))
        served = server([sys.executable, str(JOB)], port=served_port, log=folder / "runner.log", settings=runner)
        stack.enter_context(served)
        spans = [_start_ms(folder / f"mark-{number}") for number in range(WARM_UP_STARTS + starts)]
    way = f"a served deployment that looks every {POLL_SECONDS} s (as shipped, every 10 s), a process for each run"
    tell(StartAnswer(version("prefect"), way, [round(span, 1) for span in spans[WARM_UP_STARTS:]]))


def _start_ms(mark: Path) -> float:
    from prefect.deployments import run_deployment

    asked_at = time.time()
    run_deployment("job/bench", parameters={"mark": str(mark)}, timeout=0)
    deadline = time.monotonic() + START_SECONDS_MAX
    while not mark.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the flow did not start within {START_SECONDS_MAX:.0f} s")
        time.sleep(_LOOK_SECONDS)
    return (float(mark.read_text()) - asked_at) * 1000


if __name__ == "__main__":
    main()
