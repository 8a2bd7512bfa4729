"""What the tests of loading share: a definition that is right, and everything that is said about one that is not."""

from __future__ import annotations

from pathlib import Path

from headgate.clock import VirtualClock
from headgate.durable.bus.egress_policy import Destinations
from headgate.pipelines.authoring.loader import Known, load_text
from headgate.pipelines.definition.problems import Problem, errors_of
from headgate.triggers.aws.clients import AwsClients
from headgate.triggers.registry import trigger_kinds
from headgate.triggers.secret_sources import SecretSources

EXAMPLES = Path(__file__).parents[3] / "examples"
MEDALLION = EXAMPLES / "medallion" / "pipelines"
SOURCE = "orders.yaml"
RIGHT = """\
id: orders
schedules:
  - cron: "0 6 * * *"
readiness:
  rules:
    - {key: export, check: equals, field: status, value: done}
trigger:
  type: command
  config: {command: [./load, "${date}"]}
"""


def problems_of(text: str, known: Known | None = None) -> list[Problem]:
    return list(load_text(text, SOURCE, known or Known()).problems)


def errors(text: str, known: Known | None = None) -> list[Problem]:
    return errors_of(problems_of(text, known))


def real_triggers(tmp_path: Path, *, secret_prefix: str = "HG_SECRET_") -> Known:
    """Have configs of triggers be looked at by the registry, as a server does."""
    kinds = trigger_kinds(
        clock=VirtualClock(),
        environ={},
        secrets=SecretSources({}, prefix=secret_prefix),
        commands_folder=tmp_path,
        destinations=Destinations(),
        aws=AwsClients(region="us-east-1"),
    )
    return Known(check_trigger=kinds.check)
