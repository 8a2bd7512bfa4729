"""The page on gates in CI: every command of its shells and CI files, while a dataset is healthy and while it is not."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.acceptance.program import PROGRAM, Server, run

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "gate-a-deployment.md"
ORDERS: Final = "urn:dp:shop:orders:v1"
RATES: Final = "urn:dp:shop:rates:v1"
_PIPELINE: Final = """\
id: report
readiness: {rules: [{dataset: "urn:dp:shop:orders:v1"}]}
trigger: {type: command, config: {command: ["true"]}}
"""


class Site:
    def __init__(self, folder: Path, server: Server, admin: str) -> None:
        self.folder = folder
        self.server = server
        self.admin_key = admin

    def admin(self, *arguments: str) -> None:
        ended = run(*arguments, folder=self.folder, HEADGATE_API_KEY=self.admin_key)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    def key_of_page(self) -> str:
        """Issue a key by the command of the page, and return it."""
        self.admin(*shown("console")[0].split()[2:])
        return (self.folder / "ci.key").read_text().strip()

    def shell(self, text: str, key: str) -> tuple[int, str]:
        """Run lines as a CI system does: each must succeed."""
        environ = {
            "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
            "HEADGATE_SERVER": self.server.url,
            "HEADGATE_API_KEY": key,
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
        }
        ended = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", text],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr


def shown(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def ci_steps() -> list[str]:
    """Return the gate commands of the CI files of the page."""
    github, gitlab = (yaml.safe_load(text) for text in shown("yaml"))
    steps: list[Any] = [
        *(each.get("run", "") for each in github["jobs"]["deploy"]["steps"]),
        *gitlab["deploy"]["script"],
    ]
    return [each for each in steps if "headgate gate" in each]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("ci")
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "report.yaml").write_text(_PIPELINE)
    first = run("api-key", "first", "--output", "admin.key", folder=folder)
    assert first.returncode == 0, first.stderr
    with Server(folder, "--pipelines", "pipelines", HEADGATE_AUTH_REQUIRED="true") as server:
        yield Site(folder, server, (folder / "admin.key").read_text().strip())


def test_gate_page__every_command__passes_and_stops_as_the_dataset_is_healthy_or_not(site: Site) -> None:
    key = site.key_of_page()
    for urn in (ORDERS, RATES):
        site.admin("dataset", "register", urn)
        site.admin("signal", "set", urn, "DATA_QUALITY", "OK")
    wait, rest, definitions = shown("sh")
    wait = wait.replace("sleep 30", "sleep 0.1")
    steps = [*ci_steps(), wait, rest]

    assert [site.shell(each, key)[0] for each in steps] == [0] * 5
    assert "ALLOW" in (site.folder / "summary.md").read_text()
    assert site.shell(definitions, site.admin_key)[0] == 0

    site.admin("signal", "set", ORDERS, "DATA_QUALITY", "CRITICAL", "--signature", "NOT_NULL:amount")

    assert [site.shell(each, key)[0] for each in ci_steps()] == [1] * 3
    assert site.shell(wait.replace("30m", "1s"), key)[0] == 124
    assert site.shell(rest, key)[0] == 1
    example, output = PAGE.read_text().split("```")[1:4:2]
    code, printed = site.shell(example.strip(), key)
    assert (code, constant(printed)) == (1, constant(output))


def constant(text: str) -> list[str]:
    """Return the lines without times and without the incident, which may not be open yet."""
    times = re.sub(r"since \S+ \S+ \(\S+ ago\)|since \S+Z, window [^:]*(:\S+ to [^:]*)?.*(?=: )", "TIME", text)
    return [line for line in times.strip().splitlines() if "INC-" not in line]


@pytest.mark.parametrize(("fail_on", "exit_code"), [("block", 0), ("hold", 1)])
def test_gate_check__misspelled_dataset__holds(site: Site, fail_on: str, exit_code: int) -> None:
    code, printed = site.shell(f"headgate gate check urn:dp:shop:ordrs:v1 --fail-on {fail_on}", site.admin_key)

    assert code == exit_code, printed
    assert "is not registered" in printed
