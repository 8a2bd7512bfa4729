"""Laptop: types the commands of `From laptop to AWS`, with an emulator that enforces IAM in place of an account."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests.aws_deployed import Deployment, emulated
from tests.docs.test_walkthroughs import DOCS, Command, Shell, free_ports, steps
from tests.soak.figures import Figure
from tests.terraform_tools import TOOLS

PAGE: Final = DOCS / "how-to" / "from-laptop-to-aws.md"
COMMAND_SECONDS_MAX: Final = 840.0


def run(folder: Path) -> list[Figure]:
    """Type the page, and return how long it took and where it differs from what is shown."""
    if TOOLS is None or shutil.which("aws") is None:
        return [Figure("Terraform, its AWS provider and the AWS CLI", "are not all installed", holds=False)]
    with emulated(folder / "aws") as deployment:
        terraform = deployment.terraform_folder(TOOLS)
        home = folder / "home"
        shutil.copytree(terraform.parent, home / "headgate" / "deploy")
        environ = {**deployment.account(), "HOME": str(home), "AWS_PAGER": ""}
        environ["TF_CLI_CONFIG_FILE"] = deployment.environ["TF_CLI_CONFIG_FILE"]
        began = time.monotonic()
        done, differs = 0, "nothing"
        with closing(Shell(folder, free_ports(), environ, within_seconds=COMMAND_SECONDS_MAX)) as shell:
            for step in steps(PAGE):
                assert isinstance(step, Command), "the page has commands alone"
                try:
                    shell.run(step)
                    _prepare(deployment, folder / "shop", step.line)
                except (AssertionError, pytest.fail.Exception) as exc:
                    differs = str(exc)[:1_500]
                    break
                done += 1
        minutes = (time.monotonic() - began) / 60
    return [
        Figure("commands that did what the page shows", f"{done}", done > 0),
        Figure("what is not as shown", differs, differs == "nothing"),
        Figure("minutes of the whole page", f"{minutes:.1f}", minutes < 20),
    ]


def _prepare(deployment: Deployment, project: Path, line: str) -> None:
    """Do between two commands what only the emulator needs."""
    package = project / "build" / "headgate.zip"
    if line.startswith("headgate aws package") and package.exists():
        deployment.make_runnable(package)
