"""`headgate asl validate`: validates one definition, or every definition of a folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.asl.compile.severities import Severity, Target
from headgate.cli.asl.files import Variables, read_text, read_variables, show_checked
from headgate.cli.options import Resources
from headgate.cli.output import counted, show_table
from headgate.cli.session import Config, Json, echo_json, session_of
from headgate.errors import UserError
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.asl.tasks.local_tasks import LocalTasks
    from headgate.serve.rest.asl.checks import Checked, Finding, Strictness


def validate(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Definition in JSON or YAML; - for standard input.", show_default=False),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--all",
            metavar="DIR",
            help="Validate each definition below a folder, including those in CloudFormation and SAM templates.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        Target, typer.Option(help="Where it is to run. For aws, what only AWS can run is a note, not a problem.")
    ] = Target.LOCAL,
    var: Variables = None,
    resources: Resources = None,
    strict: Annotated[bool, typer.Option("--strict", help="Reject definitions that have warnings.")] = False,
    strict_budget: Annotated[
        bool,
        typer.Option(
            "--strict-budget", help="Reject loops that can exceed the 25,000 history events of Step Functions."
        ),
    ] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Validate a definition and list every problem with its location. The exit code is 2 for problems.

    No server is needed. Warnings are probable mistakes, and loops that can exceed the history limit of Step Functions.
    With --all each definition has one line; the counts by result and by reason follow. Whether a Task can run here
    depends on the resource map and on the settings `tasks.*`.
    """
    from headgate.bootstrap.task_backends import local_tasks
    from headgate.serve.rest.asl.checks import Strictness, check_definition

    if (file is None) == (folder is None):
        raise UserError("validate: name one FILE, or a folder with --all DIR")
    strictness, variables = Strictness(all=strict, budget=strict_budget), read_variables(var)
    tasks = local_tasks(session_of(context).settings(config, **{"tasks.resources": resources}))
    if folder is not None:
        is_valid = _validate_folder(folder, variables, target, strictness, tasks, as_json=as_json)
    else:
        assert file is not None, "one of them is given"
        found = check_definition(read_text(file), variables, target=target, strictness=strictness, tasks=tasks)
        is_valid = found.valid
        if as_json:
            echo_json({"file": file, **_plain(found)})
        else:
            show_checked(file, found)
    if not is_valid:
        raise typer.Exit(ExitCode.INVALID)


class _Checks:
    """The results of a folder, by the name of the definition."""

    def __init__(self, results: dict[str, Checked]) -> None:
        self.results = results

    def counts(self) -> dict[str, int]:
        """Return the number of definitions by result."""
        by_result = Counter(_result(each) for each in self.results.values())
        return {"machines": len(self.results), **{name: by_result[name] for name in _RESULTS}}

    def reasons(self) -> list[dict[str, Any]]:
        """Return the number of findings, and of definitions that have them, by severity and code."""
        findings: Counter[tuple[Severity, str]] = Counter()
        machines: Counter[tuple[Severity, str]] = Counter()
        for found in self.results.values():
            keys = [(severity, each.code) for severity, entries in _by_severity(found) for each in entries]
            findings.update(keys)
            machines.update(set(keys))
        order = list(Severity)
        keys = sorted(findings, key=lambda key: (order.index(key[0]), -machines[key], key[1]))
        return [
            {"severity": key[0].value, "code": key[1], "machines": machines[key], "findings": findings[key]}
            for key in keys
        ]


_RESULTS = ("valid", "with_notes", "with_warnings", "invalid")


def _result(found: Checked) -> str:
    if not found.valid:
        return "invalid"
    if found.warnings:
        return "with_warnings"
    return "with_notes" if found.notes else "valid"


def _by_severity(found: Checked) -> list[tuple[Severity, list[Finding]]]:
    return [(Severity.ERROR, found.problems), (Severity.WARNING, found.warnings), (Severity.NOTE, found.notes)]


def _validate_folder(
    folder: Path,
    variables: dict[str, str],
    target: Target,
    strictness: Strictness,
    tasks: LocalTasks,
    *,
    as_json: bool,
) -> bool:
    """Validate each definition of a folder and print the results; return whether all are valid."""
    from headgate.asl.documents.definition_text import unknown_variable
    from headgate.asl.documents.folder import find_definitions
    from headgate.serve.rest.asl.checks import check_document, unreadable

    if not folder.is_dir():
        raise UserError(f"--all {folder}: there is no such folder")
    found = find_definitions(folder, variables)
    if not found.definitions:
        raise UserError(
            f"--all {folder}: no definition found; files in JSON or YAML with StartAt and States, and templates with "
            "a StateMachine, are read"
        )
    if unused := sorted(variables.keys() - found.used):
        raise unknown_variable(unused[0], found.variables)
    checks = _Checks(
        {
            each.name: unreadable(each.error)
            if each.error is not None
            else check_document(each.definition, target=target, strictness=strictness, tasks=tasks)
            for each in found.definitions
        }
    )
    if as_json:
        machines = [{"file": name, "result": _result(each), **_plain(each)} for name, each in checks.results.items()]
        echo_json({"counts": checks.counts(), "reasons": checks.reasons(), "machines": machines})
    else:
        _show_folder(checks)
    return all(each.valid for each in checks.results.values())


def _show_folder(checks: _Checks) -> None:
    for name, found in checks.results.items():
        typer.echo(f"{name}: {_line(found)}")
    counts = checks.counts()
    total = counts.pop("machines")
    parts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    typer.echo(f"{counted(total, 'machine')}: {parts}")
    rows = [(each["severity"].lower(), each["code"], each["machines"], each["findings"]) for each in checks.reasons()]
    if rows:
        show_table(("SEVERITY", "REASON", "MACHINES", "FINDINGS"), rows, nothing="", key=1)


def _line(found: Checked) -> str:
    parts = ["valid" if found.valid else "invalid"]
    for severity, entries in _by_severity(found):
        codes = Counter(each.code for each in entries)
        if codes:
            listed = ", ".join(f"{code} {count}" if count > 1 else code for code, count in sorted(codes.items()))
            parts.append(f"{severity.lower()}s: {listed}")
    return "; ".join(parts)


def _plain(found: Checked) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain
