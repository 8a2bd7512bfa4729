"""A deployment by Terraform in the account of an emulator: planned, applied and destroyed from a copy of the files."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from headgate.cli.aws.package import MANIFEST, Manifest, own_architecture, write_sidecar
from tests.ministack import REGION
from tests.terraform_tools import Tools

ROOT: Final = Path(__file__).parents[1]
FILES: Final = ROOT / "deploy" / "terraform"


# The account of plans that are only looked at.
ACCOUNT: Final = "123456789012"
# Variables that turn on everything that is optional.
EVERYTHING: Final[dict[str, Any]] = {
    "api": True,
    "event_bus": True,
    "event_bus_forwards": {"west": "arn:aws:events:us-west-2:123456789012:event-bus/headgate"},
    "event_bus_senders": ["123456789012"],
    "event_topic_arn": "arn:aws:sns:us-east-1:123456789012:changes",
    "internal_api": True,
    "active_region_parameter": "/observability/statestore/active-region",
    "app": "orders:app",
    "audit_trail": True,
    "autoscaling_units_max": 400,
    "cache_node_type": "cache.t4g.small",
    "client_security_groups": {"signal-engines": "sg-0a", "alerting-engine": "sg-0b", "rca-copilot": "sg-0c"},
    "contributor_insights": ["observability-signal-state"],
    "create_alarm_topic": True,
    "create_keys": True,
    "custom_metrics": True,
    "failover_primary_name": "a.acme.example",
    "failover_record_name": "statestore.acme.example",
    "failover_secondary_name": "b.acme.example",
    "failover_zone_id": "Z0A",
    "interface_endpoints": ["sqs"],
    "private_subnet_ids": ["subnet-0a", "subnet-0b"],
    "program_principal_arns": [f"arn:aws:iam::{ACCOUNT}:user/engines"],
    "replica_regions": {"us-west-2": ""},
    "route_table_ids": ["rtb-0a"],
    "table_alarms": True,
    "tracing": True,
    "vpc_id": "vpc-0a",
}


# Rules of the subscriptions of the app in the package.
RULES: Final = {"ship": {"detail-type": ["order.paid"]}}
# Functions of its activities that are invoked asynchronously.
ACTIVITY_FUNCTIONS: Final = {
    "weigh": {"activity": "weigh", "maximum_retry_attempts": 1, "maximum_event_age_in_seconds": 5400}
}


class PlanRefusedError(Exception):
    """Terraform has refused variables or files; the text is what it printed."""


class Deployment:
    """A copy of the Terraform files, initialised, whose resources belong to one account of an emulator."""

    def __init__(self, tools: Tools, folder: Path, endpoint: str, account: str) -> None:
        """Copy the files to a folder, which must not exist, and initialise them."""
        shutil.copytree(FILES, folder / "terraform", ignore=shutil.ignore_patterns(".terraform*"))
        shutil.copy(FILES.parent / "statemachine.asl.json", folder)
        self.folder = folder / "terraform"
        self.endpoint = endpoint
        self._program = tools.program
        self.environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "AWS_ACCESS_KEY_ID": account,
            "AWS_SECRET_ACCESS_KEY": "-",
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": endpoint,
            "CHECKPOINT_DISABLE": "1",
            "TF_IN_AUTOMATION": "1",
        }
        self.run("init", f"-plugin-dir={tools.mirror}")

    def run(self, command: str, *arguments: str) -> str:
        """Run a command and return what it printed. Raises `PlanRefusedError` if it fails."""
        given = [str(self._program), f"-chdir={self.folder}", command, *arguments, "-no-color"]
        done = subprocess.run(given, env=self.environ, capture_output=True, text=True, check=False)
        if done.returncode:
            # Terraform draws a frame around errors and breaks their lines.
            printed = (done.stdout + done.stderr).replace("│", " ")
            raise PlanRefusedError(" ".join(printed.split()))
        return done.stdout

    def with_variables(self, command: str, variables: Mapping[str, Any], *arguments: str) -> str:
        """Run a command with values of variables, which are converted to JSON."""
        file = self.folder.parent / "variables.tfvars.json"
        file.write_text(json.dumps(variables))
        return self.run(command, "-input=false", f"-var-file={file}", *arguments)

    def plan(self, variables: Mapping[str, Any], *arguments: str) -> Plan:
        """Plan with values of variables. Raises `PlanRefusedError`."""
        saved = self.folder.parent / "saved.plan"
        self.with_variables("plan", variables, f"-out={saved}", *arguments)
        return Plan(json.loads(self.run("show", "-json", str(saved))))


class Plan:
    """What Terraform would do."""

    def __init__(self, shown: Mapping[str, Any]) -> None:
        self.shown = shown
        self._changes = shown["resource_changes"]
        # Values by address; what is only known after the apply is missing or None.
        self.planned: dict[str, dict[str, Any]] = {
            each["address"]: each.get("values", {}) for each in _resources(shown["planned_values"]["root_module"])
        }

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the planned values of the resources of a type, by what follows the type in their address."""
        return {
            address.removeprefix(f"{kind}."): values
            for address, values in self.planned.items()
            if address.startswith(f"{kind}.")
        }

    def kinds(self) -> set[str]:
        """Return the types of the planned resources."""
        return {address.partition(".")[0] for address in self.planned}

    def changes(self) -> dict[str, set[str]]:
        """Return the attributes that would change, by address; of all resources that would not stay as they are."""
        return {
            each["address"]: _differing(each["change"])
            for each in self._changes
            if each["change"]["actions"] not in (["no-op"], ["read"])
        }


def _resources(module: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (each for each in module.get("resources", []) if each["mode"] == "managed")
    for child in module.get("child_modules", []):
        yield from _resources(child)


def _differing(change: Mapping[str, Any]) -> set[str]:
    before, after = change["before"] or {}, change["after"] or {}
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def small_package(folder: Path, architecture: str = "") -> Path:
    """Return a package without functions: Terraform reads what it was built for, and its bytes."""
    manifest = Manifest(architecture or own_architecture(), "3.11")
    path = folder / "headgate.zip"
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr(MANIFEST, json.dumps(manifest._asdict()))
    write_sidecar(path, manifest, RULES, ACTIVITY_FUNCTIONS)
    return path
