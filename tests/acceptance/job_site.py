"""A job server on loopback for the installed program: it answers what the test says, and notes what it was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.acceptance.program import Server, until
from tests.unit.triggers.rigs import Api, Asked, Reply, serving

DAY: Final = "2026-01-05"
# Loopback receivers without TLS are refused unless they are allowed.
OPEN: Final = {"HEADGATE_FORWARD_PLAIN_HTTP": "true", "HEADGATE_FORWARD_PRIVATE_NETWORKS": "127.0.0.0/8"}


class CallbackSite:
    """A server with http pipelines, and the job server that they call."""

    def __init__(self, folder: Path, api: Api, pipelines: str, **environ: str) -> None:
        self.folder, self.api = folder, api
        (folder / "pipelines").mkdir(parents=True)
        (folder / "pipelines" / "jobs.yaml").write_text(pipelines.replace("JOBS", api.url))
        self.environ = {**OPEN, **environ}
        self.server = self.start()

    def start(self, *more: str) -> Server:
        return Server(self.folder, "--pipelines", "pipelines", *more, **self.environ)

    def restart(self) -> None:
        """Kill the server, and start it again on the same port."""
        port = self.server.url.rpartition(":")[2]
        self.server.process.kill()
        self.server.process.wait()
        self.server = self.start("--http", f"127.0.0.1:{port}")

    def begin(self, pipeline: str) -> None:
        url = f"{self.server.url}/api/v1/pipelines/{pipeline}/runs"
        started = httpx.post(url, json={"date": DAY, "reason": "test"}, timeout=20)
        assert started.status_code == 202, started.text

    def run_of(self, pipeline: str) -> dict[str, Any]:
        runs = self.server.get(f"/pipelines/{pipeline}/runs")["runs"]
        return runs[0] if runs else {"status": ""}

    def until_status(self, pipeline: str, status: str) -> dict[str, Any]:
        until(lambda: self.run_of(pipeline)["status"] == status, f"{pipeline} is {status}")
        return self.run_of(pipeline)

    def asked(self, path: str) -> list[Asked]:
        return [asked for asked in self.api.asked if asked.path == path]

    def job(self, path: str) -> Asked:
        """Return the request that started the job of a path, once it is there."""
        until(lambda: bool(self.asked(path)), f"a request to {path}")
        return self.asked(path)[0]

    def running_job(self, pipeline: str) -> Asked:
        """Begin a run, and return the request that started its job at the path of the pipeline's name."""
        self.begin(pipeline)
        job = self.job(f"/{pipeline}")
        self.until_status(pipeline, "RUNNING")
        return job


def report(job: Asked, status: str, *, token: str | None = None, **more: str) -> httpx.Response:
    """Call back as the job that was started by a request."""
    sent = job.headers["headgate-callback-token"] if token is None else token
    return httpx.post(
        job.headers["headgate-callback"],
        json={"status": status, **more},
        headers={"headgate-callback-token": sent},
        timeout=20,
    )


@contextmanager
def callback_site(
    folder: Path, pipelines: str, answer: Callable[[Asked], Reply | None], **environ: str
) -> Iterator[CallbackSite]:
    with serving(answer) as api:
        site = CallbackSite(folder, api, pipelines, **environ)
        try:
            yield site
        finally:
            site.server.__exit__(None, None, None)
