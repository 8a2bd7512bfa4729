"""Terraform validates and plans the files of the deployment, where the program and a mirror of its provider are here.

`python -m tests.soak terraform` applies and destroys them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from headgate.cli.aws.package import own_architecture
from tests.ministack import REGION, fresh_account
from tests.terraform_rig import Deployment, Plan, PlanRefusedError, small_package
from tests.terraform_tools import TOOLS, VARIABLE, Tools, find_tools

if TOOLS is None:
    pytest.skip("Terraform is not here", allow_module_level=True)

FOREIGN: Final = {"x86_64": "arm64", "arm64": "x86_64"}


@pytest.fixture(scope="module")
def deployment(ministack: str, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    assert TOOLS is not None
    return Deployment(TOOLS, tmp_path_factory.mktemp("deploy") / "copy", ministack, fresh_account())


@pytest.fixture(scope="module")
def required(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The variables without a default."""
    package = small_package(tmp_path_factory.mktemp("package"))
    return {"region": REGION, "bucket": "acme", "package": str(package), "architecture": own_architecture()}


@pytest.fixture(scope="module")
def usual(deployment: Deployment, required: dict[str, Any]) -> Plan:
    """The plan of a deployment that sets nothing but what it has to."""
    return deployment.plan(required)


def test_files__as_terraform_reads_them__are_formatted(deployment: Deployment) -> None:
    assert deployment.run("fmt", "-check", "-recursive") == ""


def test_plan__of_a_deployment_that_sets_little__has_its_functions(usual: Plan) -> None:
    assert usual.of("aws_lambda_function")['function["orchestrator"]']["architectures"] == [own_architecture()]


def test_plan__package_of_another_architecture__is_refused(
    deployment: Deployment, required: dict[str, Any], tmp_path: Path
) -> None:
    foreign = FOREIGN[own_architecture()]
    package = str(small_package(tmp_path, foreign))

    # The rest of the plan has no part in it.
    with pytest.raises(PlanRefusedError, match=f"the package was built for {foreign}, not for {own_architecture()}"):
        deployment.plan({**required, "package": package}, "-target=aws_s3_object.package")


def test_tools__of_this_machine__are_found_where_terraform_looks_or_where_they_are_named(tmp_path: Path) -> None:
    assert TOOLS is not None
    program = tmp_path / "terraform"
    program.symlink_to(TOOLS.program)
    mirror = tmp_path / "home" / ".terraform.d" / "plugins"
    mirror.parent.mkdir(parents=True)
    mirror.symlink_to(TOOLS.mirror)

    assert find_tools({VARIABLE: f"{program}:{mirror}"}) == Tools(program, mirror)
    assert find_tools({"PATH": str(tmp_path), "HOME": str(tmp_path / "home")}) == Tools(program, mirror)
    assert find_tools({"PATH": str(tmp_path), "HOME": "/", "TF_PLUGIN_CACHE_DIR": str(mirror)}) == Tools(
        program, mirror
    )
    assert find_tools({"PATH": str(tmp_path / "home"), "HOME": str(tmp_path / "home")}) is None
