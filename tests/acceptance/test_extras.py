"""The core alone: what a server does without the libraries of the extras, and what it says about them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.program import PROGRAM, run, until

# Each process of the program finds the libraries of the extras as little as if they were not installed.
_SITE = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"grpc", "grpc_health", "grpc_reflection", "google", "strawberry", "graphql"} | {
            "opentelemetry"
        }:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of an installation without extras."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, core: dict[str, str]) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("core")
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [PROGRAM, "up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--processes", "2"],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **core},
            stdout=out,
            stderr=err,
        )
    try:
        until(lambda: b"\n" in (folder / "out").read_bytes() or process.poll() is not None, "the server is ready")
        yield folder
    finally:
        process.terminate()
        assert process.wait(30) == 0, (folder / "err").read_text()


def test_server__without_extras__says_what_is_off_and_serves_the_rest(server: Path) -> None:
    ready = (server / "out").read_text()
    url = ready.split("http=", 1)[1].split()[0]

    assert "  grpc=off  graphql=off  home=" in ready
    log = (server / "err").read_text()
    assert "pip install 'headgate[grpc]'" in log
    assert "pip install 'headgate[graphql]'" in log
    assert httpx.get(f"{url}/api/v1/datasets").status_code == 200
    assert httpx.get(f"{url}/ui", follow_redirects=True).status_code == 200


def test_graphql__without_its_extra__is_501_with_the_command(server: Path) -> None:
    url = (server / "out").read_text().split("http=", 1)[1].split()[0]

    answer = httpx.post(f"{url}/graphql", json={"query": "{ __typename }"})

    assert (answer.status_code, answer.json()["code"]) == (501, "missing_extra")
    assert "pip install 'headgate[graphql]'" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("environ", "what", "extra"),
    [
        ({"HEADGATE_TELEMETRY_TRACING": "true"}, "telemetry.tracing", "otel"),
        ({"HEADGATE_GRPC": "127.0.0.1:9401"}, "grpc = 127.0.0.1:9401", "grpc"),
        ({"HEADGATE_HEALTH_INTAKE": "always"}, "health.intake", "grpc"),
    ],
)
def test_settings__that_need_a_missing_extra__exit_2_with_the_command(
    tmp_path: Path, core: dict[str, str], environ: dict[str, str], what: str, extra: str
) -> None:
    ended = run("up", "--http", "127.0.0.1:0", folder=tmp_path, **core, **environ)

    assert ended.returncode == 2, ended.stderr
    assert what in ended.stderr
    assert f"pip install 'headgate[{extra}]'" in ended.stderr
    assert "code: missing_extra" in ended.stderr


def test_doctor__without_extras__names_them_and_the_command(tmp_path: Path, core: dict[str, str]) -> None:
    ended = run("doctor", folder=tmp_path, **core)

    assert ended.returncode == 0, ended.stdout
    assert "pip install 'headgate[grpc,graphql,otel]'" in ended.stdout
