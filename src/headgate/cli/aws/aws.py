"""`headgate aws`: builds the package of the functions, plans, applies, diagnoses, prices and destroys a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.aws.cost import cost
from headgate.cli.aws.doctor import doctor
from headgate.cli.aws.redrive import redrive
from headgate.cli.commands import command_group
from headgate.cli.session import session_of
from headgate.exit_codes import ExitCode

app = command_group("Deploy pipelines and workflows to AWS.")

PackageFile = Annotated[Path, typer.Argument(metavar="PACKAGE", help="The package that 'headgate aws package' built.")]
Region = Annotated[str, typer.Option(metavar="NAME", help="Region of everything.")]
Bucket = Annotated[str, typer.Option(metavar="NAME", help="Bucket for payloads and packages; Terraform creates it.")]
AppName = Annotated[str, typer.Option("--app", metavar="MODULE:NAME", help="App whose workflows the functions run.")]
Variables = Annotated[
    list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="Another variable of the Terraform files.")
]
Folder = Annotated[Path, typer.Option("--terraform", metavar="FOLDER", help="Folder of the Terraform files.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
DEFAULT_FOLDER = Path("deploy/terraform")


@app.command()
def package(
    context: typer.Context,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Where the package is written.")],
    pipelines: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Definitions that the functions apply.")
    ] = None,
    notify: Annotated[Path | None, typer.Option(metavar="FILE", help="Alert channels: notify.toml.")] = None,
    code: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Modules of the app, and whatever else they import.")
    ] = None,
    app_name: AppName = "",
    architecture: Annotated[
        str, typer.Option(metavar="NAME", help="x86_64 or arm64; by default that of this machine.")
    ] = "",
) -> None:
    """Build the package of the functions, after checking what they would refuse.

    The same files make the same package, byte by byte. For another architecture than that of this machine, pip
    downloads the compiled packages.
    """
    from headgate.cli.aws import package as aws_package

    given = {"pipelines": pipelines, "notify": notify, "code": code, "app": app_name, "architecture": architecture}
    options = [part for name, value in given.items() if value for part in (f"--{name}", str(value))]
    exit_code = aws_package.run([str(target), *options], session_of(context).environ)
    if exit_code:
        raise typer.Exit(exit_code)


@app.command()
def plan(
    context: typer.Context,
    package_file: PackageFile,
    region: Region,
    bucket: Bucket,
    app_name: AppName = "",
    var: Variables = None,
    terraform: Folder = DEFAULT_FOLDER,
) -> None:
    """Show what a deployment would change. The architecture and runtime are those of the package."""
    _run(context, "plan", package_file, region, bucket, app_name, var, terraform)


@app.command()
def deploy(
    context: typer.Context,
    package_file: PackageFile,
    region: Region,
    bucket: Bucket,
    app_name: AppName = "",
    var: Variables = None,
    terraform: Folder = DEFAULT_FOLDER,
    yes: Yes = False,
) -> None:
    """Deploy a package. Functions are called in their new version once it has passed a check."""
    _run(context, "apply", package_file, region, bucket, app_name, var, terraform, yes=yes)


@app.command()
def destroy(
    context: typer.Context,
    package_file: PackageFile,
    region: Region,
    bucket: Bucket,
    app_name: AppName = "",
    var: Variables = None,
    terraform: Folder = DEFAULT_FOLDER,
    yes: Yes = False,
) -> None:
    """Delete a deployment with its tables and its bucket.

    Deploy with '--var deletion_protection=false' first: tables and bucket refuse to be deleted until then.
    """
    _run(context, "destroy", package_file, region, bucket, app_name, var, terraform, yes=yes)


def _run(
    context: typer.Context,
    command: str,
    package_file: Path,
    region: str,
    bucket: str,
    app_name: str,
    var: list[str] | None,
    terraform: Path,
    *,
    yes: bool = False,
) -> None:
    from headgate.cli.aws import terraform_runs

    variables = terraform_runs.variables(package_file, region, bucket, app_name, var or [])
    code = terraform_runs.run(command, terraform, variables, session_of(context).environ, is_confirmed=yes)
    if code:
        # What Terraform reports has been printed.
        raise typer.Exit(ExitCode.FAILED)


app.command("doctor")(doctor)
app.command("redrive")(redrive)
app.command("cost")(cost)
