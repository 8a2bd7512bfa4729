"""Triggers and evaluators of an installed third-party package, found by their entry points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.acceptance.program import Server, run, until

DAY: Final = "2026-01-05"
# An installed package is a module and a folder of metadata beside it: this is what pip leaves behind.
MODULE: Final = """\
from pathlib import Path

from headgate.pipelines.traits.protocol import Answer, Question, not_met, passed
from headgate.triggers.config import Config
from headgate.triggers.contract import Job, JobState, PollResult, Started, completed


class TouchConfig(Config, frozen=True):
    path: str


class Touch:
    name = "acme-touch"
    config_type = TouchConfig
    secret_fields = frozenset()
    is_local = True

    def __init__(self, tools):
        self.clock = tools.clock

    def start(self, job: Job[TouchConfig]) -> Started:
        Path(job.config.path).write_text(job.key)
        return completed(job.key)

    def poll(self, job, metadata) -> PollResult:
        return PollResult(JobState.SUCCEEDED)

    def cancel(self, job, metadata) -> None:
        pass


def file_is_there(question: Question) -> Answer:
    path = question.config["path"]
    return passed(f"{path} exists") if Path(path).exists() else not_met(f"{path} does not exist")
"""
ENTRY_POINTS: Final = """\
[headgate.triggers]
acme-touch = acme_headgate:Touch

[headgate.evaluators]
acme-file = acme_headgate:file_is_there
"""
PIPELINE: Final = """\
id: plugged
readiness:
  interval: 1s
  traits:
    landed:
      evaluator: plugin:acme-file
      config: {{path: "{folder}/landed-${{date}}"}}
trigger:
  type: acme-touch
  config: {{path: "{folder}/started-${{date}}"}}
"""


def install(folder: Path, *, module: str = MODULE, entry_points: str = ENTRY_POINTS) -> str:
    """Lay the package into a folder as pip would, and return the folder for PYTHONPATH."""
    metadata = folder / "acme_headgate-1.2.dist-info"
    metadata.mkdir(parents=True)
    (folder / "acme_headgate.py").write_text(module)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-headgate\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    return str(folder)


@pytest.mark.timeout(180)
def test_package__with_a_trigger_and_an_evaluator__both_serve_a_pipeline(tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    definition = tmp_path / "pipelines" / "plugged.yaml"
    definition.parent.mkdir()
    definition.write_text(PIPELINE.format(folder=tmp_path))

    # Without the package the type and the evaluator are refused by name; with it the definition is valid.
    without = run("validate", str(definition), folder=tmp_path)
    assert without.returncode == 2
    assert "acme-touch" in without.stdout + without.stderr
    assert run("validate", str(definition), folder=tmp_path, PYTHONPATH=site).returncode == 0
    misspelt = tmp_path / "misspelt.yaml"
    misspelt.write_text(PIPELINE.format(folder=tmp_path).replace("{path:", "{pth:"))
    assert "pth" in run("validate", str(misspelt), folder=tmp_path, PYTHONPATH=site).stderr

    with Server(tmp_path, "--pipelines", "pipelines", PYTHONPATH=site):

        def why() -> str:
            return run("why", "plugged", "--date", DAY, folder=tmp_path).stdout

        def status() -> str:
            found = json.loads(run("run", "ls", "plugged", "--json", folder=tmp_path).stdout)
            return str(found[0]["status"]) if found else ""

        started = run("run", "start", "plugged", "--date", DAY, "--reason", "test", folder=tmp_path)
        assert started.returncode == 0, started.stderr
        until(lambda: f"landed-{DAY} does not exist" in why(), "the evaluator answered", 60)
        assert not (tmp_path / f"started-{DAY}").exists()

        (tmp_path / f"landed-{DAY}").touch()
        until(lambda: status() == "COMPLETED", "the run completed", 60)
        assert (tmp_path / f"started-{DAY}").exists()


@pytest.mark.parametrize(
    ("module", "entry_points", "message"),
    [
        (
            "import no_such_module",
            ENTRY_POINTS,
            "registered by acme-headgate 1.2, cannot be loaded: ModuleNotFoundError",
        ),
        ("Touch = 1", ENTRY_POINTS, "lacks name, config_type, secret_fields, is_local"),
        (MODULE, ENTRY_POINTS.replace("acme-touch", "command"), "the type is built in"),
        (MODULE, ENTRY_POINTS.replace("acme-touch", "acme-tuch"), "the class is named 'acme-touch'"),
    ],
)
def test_package__that_cannot_serve__the_server_names_it_and_does_not_start(
    tmp_path: Path, module: str, entry_points: str, message: str
) -> None:
    site = install(tmp_path / "site", module=module, entry_points=entry_points)
    (tmp_path / "pipelines").mkdir()

    ended = run("up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--pipelines", "pipelines",
                folder=tmp_path, PYTHONPATH=site)  # fmt: skip

    assert ended.returncode == 2, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
