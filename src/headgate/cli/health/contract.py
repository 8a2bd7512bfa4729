"""`headgate dataset import-contract`: registers the datasets of an ODCS contract, and writes their checks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer
from headgate.cli.input_files import read_content
from headgate.cli.options import Reason, Ticket
from headgate.cli.output import show_table
from headgate.errors import NotFoundError, UserError

if TYPE_CHECKING:
    from headgate.checks.contracts import ImportedContract, ImportedDataset


def import_contract(
    api: Api,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Data contract: ODCS v3 in YAML or JSON.")],
    dataset: Annotated[
        str | None, typer.Option("--dataset", metavar="URN", help="Dataset. [default: urn:dp:DOMAIN:OBJECT]")
    ] = None,
    server_name: Annotated[
        str | None, typer.Option("--read-server", metavar="NAME", help="Server that checks read. [default: the first]")
    ] = None,
    checks: Annotated[
        Path, typer.Option("--checks", metavar="FOLDER", help="Folder for the check files.", show_default=True)
    ] = Path("checks"),
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be done, and do nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace check files that exist.")] = False,
    ticket: Ticket = None,
    reason: Reason = "",
) -> Answer:
    """Import a data contract (ODCS v3): owners, SLAs and schema become configuration, quality rules become checks.

    What has no counterpart is listed. Fields of a registered dataset that the contract does not name are kept.
    """
    imported = _read(file, dataset, server_name)
    files = {each.dataset_urn: checks / f"{_file_name(each)}.yaml" for each in imported.datasets}
    if not plan:
        existing = [str(path) for path in files.values() if path.exists()]
        if existing and not force:
            raise UserError(f"{existing[0]}: the file exists; give --force to replace it, or --checks FOLDER")
        # The datasets first: a check of an unknown dataset would register it as discovered.
        for each in imported.datasets:
            _register(api, each, ticket, reason)
        for each in imported.datasets:
            _write(files[each.dataset_urn], each)
    yield {
        "contract_id": imported.contract_id,
        "datasets": [
            {
                "dataset_urn": each.dataset_urn,
                "config": each.config,
                "checks": each.checks,
                "file": str(files[each.dataset_urn]),
            }
            for each in imported.datasets
        ],
        "unmapped": [{"path": each.path, "reason": each.reason} for each in imported.unmapped],
    }
    verb = "would register" if plan else "registered"
    for each in imported.datasets:
        count = len(each.checks["checks"])
        typer.echo(f"{verb} {each.dataset_urn}; {count} checks in {files[each.dataset_urn]}")
    rows = [(each.path, each.reason) for each in imported.unmapped]
    show_table(("NOT TAKEN OVER", "WHY"), rows, nothing="everything was taken over")


def _read(file: str, dataset: str | None, server_name: str | None) -> ImportedContract:
    from headgate.checks import contracts
    from headgate.pipelines.definition.problems import InvalidPipelineError
    from headgate.pipelines.definition.source_map import Unreadable, documents

    try:
        text = read_content(file, "contract").decode()
    except UnicodeDecodeError as exc:
        raise UserError(f"contract {file}: not UTF-8 text: {exc}") from exc
    try:
        [node] = documents(text, file)
    except Unreadable as exc:
        raise InvalidPipelineError([exc.problem]) from exc
    except ValueError as exc:
        raise UserError(f"contract {file}: give one document") from exc
    return contracts.import_contract(node.plain(), dataset=dataset, server=server_name)


def _register(api: Api, imported: ImportedDataset, ticket: str | None, reason: str) -> None:
    """Register a dataset, or merge the contract into the config of a registered one."""
    approval = {"approval_ticket": ticket, "reason": reason or "import of a data contract"}
    try:
        current = api.get(at("datasets", imported.dataset_urn))
    except NotFoundError:
        api.post("/datasets", {**imported.config, **approval, "dataset_urn": imported.dataset_urn})
        return
    from headgate.cli.health.dataset import READ_ONLY

    kept = {name: value for name, value in current.items() if name not in READ_ONLY and name != "dataset_urn"}
    body = {**_merged(kept, imported.config), **approval, "expected_version": current["config_version"]}
    api.request("PUT", at("datasets", current["dataset_urn"]), body=body)


def _merged(before: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    result = dict(before)
    for name, value in change.items():
        known = result.get(name)
        result[name] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return result


def _write(path: Path, imported: ImportedDataset) -> None:
    import yaml

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(imported.checks, sort_keys=False, allow_unicode=True, width=110))


def _file_name(imported: ImportedDataset) -> str:
    return imported.dataset_urn.removeprefix("urn:dp:").replace(":", "-").replace("/", "-").replace("+", "-")
