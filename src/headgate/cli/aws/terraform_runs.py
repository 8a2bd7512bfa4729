"""Terraform runs: runs Terraform on the files of a deployment, with variables that fit the package."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from headgate.cli.aws.package import Manifest, read_manifest
from headgate.errors import UserError


def variables(package_file: Path, region: str, bucket: str, app_name: str, given: Sequence[str]) -> dict[str, str]:
    """Return the variables of a deployment. Raises `UserError` if one contradicts the package."""
    manifest = read_manifest(package_file)
    result = {"region": region, "bucket": bucket, "package": str(package_file.absolute())}
    if app_name:
        result["app"] = app_name
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.isidentifier():
            raise UserError(f"--var {text!r}: write NAME=VALUE, such as name=headgate-test")
        if name in result:
            raise UserError(f"--var {name}: it has an option or argument of its own; use that")
        result[name] = value
    for name, value in _of_package(manifest).items():
        if result.setdefault(name, value) != value:
            raise UserError(
                f"--var {name}={result[name]}: the package {package_file} was built for {value}; "
                "build it again with --architecture, or leave the variable out"
            )
    return result


def _of_package(manifest: Manifest) -> dict[str, str]:
    return {"architecture": manifest.architecture, "runtime": f"python{manifest.python}"}


def run(command: str, folder: Path, given: Mapping[str, str], environ: Mapping[str, str], *, is_confirmed: bool) -> int:
    """Run a Terraform command with its output on this terminal, and return its exit code. Raises `UserError`."""
    program = shutil.which("terraform", path=environ.get("PATH"))
    if program is None:
        raise UserError("terraform: there is no such program; install Terraform 1.5 or later")
    if not (folder / "versions.tf").is_file():
        raise UserError(f"--terraform {folder}: there are no Terraform files; use deploy/terraform of the source")
    code = subprocess.run(
        [program, f"-chdir={folder}", "init", "-input=false"], env=dict(environ), check=False
    ).returncode
    if code:
        return code
    options = ["-auto-approve"] if is_confirmed and command != "plan" else []
    arguments = [part for name, value in given.items() for part in ("-var", f"{name}={value}")]
    return subprocess.run(
        [program, f"-chdir={folder}", command, *options, *arguments], env=dict(environ), check=False
    ).returncode
