"""Kinds of triggers: the built-in ones and those of installed packages, by name, and the check of a config.

Nothing here opens a connection: `headgate pipeline validate` checks definitions without a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headgate.errors import DefinitionError
from headgate.triggers import templates
from headgate.triggers.aws.emr import EmrKind
from headgate.triggers.aws.emr_serverless import EmrServerlessKind
from headgate.triggers.aws.glue import GlueKind
from headgate.triggers.aws.lambda_function import LambdaKind
from headgate.triggers.aws.step_function import StepFunctionKind
from headgate.triggers.config import ConfigError, check_fields, read
from headgate.triggers.http.airflow import AirflowKind
from headgate.triggers.http.databricks import DatabricksKind
from headgate.triggers.http.request import HttpKind
from headgate.triggers.local.command import CommandKind
from headgate.triggers.local.fanout import FanoutKind
from headgate.triggers.local.workflow import WorkflowKind
from headgate.triggers.plugins import registered_types, trigger_class
from headgate.triggers.secret_sources import SecretSources

BUILT_IN: Final[Mapping[str, Any]] = {
    kind.name: kind
    for kind in (
        CommandKind,
        HttpKind,
        AirflowKind,
        GlueKind,
        EmrKind,
        EmrServerlessKind,
        StepFunctionKind,
        DatabricksKind,
        LambdaKind,
        WorkflowKind,
        FanoutKind,
    )
}


def kind_names() -> tuple[str, ...]:
    """Return the types that a trigger may have: the built-in ones, and those of installed packages."""
    return (*BUILT_IN, *(name for name in registered_types() if name not in BUILT_IN))


def kind_named(name: str) -> Any:  # noqa: ANN401 - the class of a kind, with its class attributes
    """Return the class of a kind. Raises `DefinitionError` for an unknown name, `SettingsError` for a bad plug-in."""
    if name not in kind_names():
        raise DefinitionError(f"trigger type {name[:40]!r} is unknown; use one of {', '.join(sorted(kind_names()))}")
    return BUILT_IN.get(name) or trigger_class(name, reserved=BUILT_IN)


def check_config(
    kind: Any,  # noqa: ANN401 - a kind or its class
    config: dict[str, Any],
    secrets: SecretSources,
    *,
    date_example: str | None = None,
) -> None:
    """Raise `DefinitionError` for a config that could never be started, naming the field and the allowed values.

    `date_example` is a date of the pipeline's period; with it, date parts that such dates lack are refused.
    """
    check_fields(kind.name, kind.config_type, config)
    read(kind.name, kind.config_type, config)
    try:
        templates.check(config, kind.secret_fields, secrets, date_example=date_example, late=late_names(kind))
    except templates.TemplateError as exc:
        raise ConfigError(kind.name, [exc.problem]) from exc


def late_names(kind: object) -> frozenset[str]:
    """Return the names of templates that a kind fills in itself, after the start."""
    return getattr(kind, "late_names", frozenset())
