"""`headgate aws`: packages for either architecture, and Terraform with variables that fit them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from headgate.cli.aws import package as aws_package
from headgate.cli.aws.package import MANIFEST, own_architecture, read_manifest
from headgate.cli.aws.terraform_runs import run, variables
from headgate.errors import UserError

TERRAFORM = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$2" in destroy) exit 3;; esac
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package for arm64, without its files."""
    with zipfile.ZipFile(tmp_path / "headgate.zip", "w") as opened:
        opened.writestr(MANIFEST, json.dumps({"architecture": "arm64", "python": "3.11"}))
    return tmp_path / "headgate.zip"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with a Terraform that writes down how it is called, and fails to destroy."""
    program = tmp_path / "bin" / "terraform"
    program.parent.mkdir()
    program.write_text(TERRAFORM)
    program.chmod(0o755)
    (tmp_path / "versions.tf").write_text("")
    return {"PATH": f"{program.parent}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls")}


def test_variables__of_a_deployment__have_the_architecture_and_runtime_of_the_package(package: Path) -> None:
    found = variables(package, "eu-west-1", "acme", "orders:app", ["name=test", 'tags={a="b=c"}'])

    assert found == {
        "region": "eu-west-1",
        "bucket": "acme",
        "package": str(package),
        "app": "orders:app",
        "name": "test",
        "tags": '{a="b=c"}',
        "architecture": "arm64",
        "runtime": "python3.11",
    }


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("architecture=x86_64", "was built for arm64"),
        ("runtime=python3.12", "was built for python3.11"),
        ("region=us-east-1", "it has an option or argument of its own"),
        ("name", "write NAME=VALUE"),
    ],
)
def test_variables__that_contradict_the_package_or_an_option__are_refused(
    package: Path, given: str, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        variables(package, "eu-west-1", "acme", "", [given])


def test_package__that_is_none__is_named(tmp_path: Path) -> None:
    (tmp_path / "other.zip").write_text("no zip")

    with pytest.raises(UserError, match=r"other.zip: not a package of the functions; build it with"):
        variables(tmp_path / "other.zip", "eu-west-1", "acme", "", [])


def test_run__commands_of_terraform__are_initialised_confirmed_only_if_asked_and_their_failure_is_returned(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    given = {"region": "eu-west-1"}

    codes = [
        run("plan", tmp_path, given, environ, is_confirmed=True),
        run("apply", tmp_path, given, environ, is_confirmed=False),
        run("destroy", tmp_path, given, environ, is_confirmed=True),
    ]

    chdir, init = f"-chdir={tmp_path}", f"-chdir={tmp_path} init -input=false"
    assert codes == [0, 0, 3]
    assert (tmp_path / "calls").read_text().splitlines() == [
        init,
        f"{chdir} plan -var region=eu-west-1",
        init,
        f"{chdir} apply -var region=eu-west-1",
        init,
        f"{chdir} destroy -auto-approve -var region=eu-west-1",
    ]


def test_run__no_terraform_or_no_files__says_what_to_do(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(UserError, match="install Terraform"):
        run("plan", tmp_path, {}, {"PATH": str(tmp_path)}, is_confirmed=False)
    with pytest.raises(UserError, match="there are no Terraform files"):
        run("plan", tmp_path / "bin", {}, environ, is_confirmed=False)


def test_build__architecture_that_lambda_lacks__is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--architecture riscv64: use x86_64 or arm64"):
        aws_package.build(tmp_path / "x.zip", architecture="riscv64")


def test_package__of_the_same_files__has_the_same_bytes_and_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("x = {1, 2}")
    found = {"module.py": tmp_path / "module.py"}
    manifest = aws_package.Manifest(own_architecture(), "3.11")

    sizes = [aws_package.pack(tmp_path / name, found, manifest) for name in ("a.zip", "b.zip")]

    assert sizes[0] == sizes[1] > 0
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert read_manifest(tmp_path / "a.zip").architecture == own_architecture()
