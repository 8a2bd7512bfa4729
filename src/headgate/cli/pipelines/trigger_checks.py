"""Offline validation of pipeline triggers: type, configuration and template references."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from headgate.errors import DefinitionError
from headgate.triggers import templates
from headgate.triggers.aws.emr import EmrKind
from headgate.triggers.aws.emr_serverless import EmrServerlessKind
from headgate.triggers.aws.glue import GlueKind
from headgate.triggers.aws.lambda_function import LambdaKind
from headgate.triggers.aws.step_function import StepFunctionKind
from headgate.triggers.config import read
from headgate.triggers.http.airflow import AirflowKind
from headgate.triggers.http.databricks import DatabricksKind
from headgate.triggers.http.request import HttpKind
from headgate.triggers.local.command import CommandKind
from headgate.triggers.local.fanout import FanoutKind
from headgate.triggers.local.workflow import WorkflowKind
from headgate.triggers.plugins import registered_types, trigger_class
from headgate.triggers.secret_sources import SecretSources

_KINDS: Final = {
    kind.name: kind
    for kind in (
        AirflowKind,
        CommandKind,
        DatabricksKind,
        EmrKind,
        EmrServerlessKind,
        FanoutKind,
        GlueKind,
        HttpKind,
        LambdaKind,
        StepFunctionKind,
        WorkflowKind,
    )
}
# References to secrets are checked for their form; only the server can resolve them.
_SECRETS: Final = SecretSources({}, folder=Path())


def check_trigger(type: str, config: dict[str, Any], *, date_example: str | None = None) -> None:
    """Raise `DefinitionError` for an invalid trigger, with the field and its allowed values.

    `date_example` is a period of the pipeline.
    """
    types = (*_KINDS, *registered_types())
    if type not in types:
        raise DefinitionError(f"trigger type {type[:40]!r} is unknown; use one of {', '.join(sorted(types))}")
    kind: Any = _KINDS.get(type) or trigger_class(type, reserved=_KINDS)
    read(kind.name, kind.config_type, config)
    try:
        templates.check(config, kind.secret_fields, _SECRETS, date_example=date_example)
    except DefinitionError as exc:
        raise DefinitionError(f"trigger {type}: {exc}") from exc
