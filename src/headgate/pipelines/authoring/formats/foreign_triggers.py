"""Foreign triggers: converts trigger configurations of the older formats."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from headgate.pipelines.definition.node_edits import node_of, renamed, set_default
from headgate.pipelines.definition.source_map import Node

_NAMES: Final[dict[str, dict[str, str]]] = {
    "lambda": {"functionName": "function"},
    "airflow": {"dagId": "dag_id", "dagID": "dag_id", "body": "conf"},
    "glue": {"jobName": "job_name"},
    "emr": {
        "clusterId": "cluster_id", "clusterID": "cluster_id", "stepName": "step_name", "command": "jar",
        "arguments": "args",
    },
    "emr-serverless": {"applicationId": "application_id", "applicationID": "application_id", "jobName": "name"},
    "step-function": {
        "stateMachineArn": "state_machine_arn", "stateMachineARN": "state_machine_arn", "arguments": "input",
    },
    "databricks": {
        "workspaceUrl": "url", "workspaceURL": "url", "jobId": "job_id", "jobID": "job_id",
        "arguments": "notebook_params",
    },
}  # fmt: skip
_TEMPLATES: Final = {
    "scheduleID": "schedule", "pipelineID": "pipeline", "DATE": "date", "HOUR": "hour", "PIPELINE": "pipeline",
    "SCHEDULE": "schedule", "RUN_ID": "run_id",
}  # fmt: skip
_TEMPLATE: Final = re.compile(r"\$\{(\w+)\}")
_VARIABLE: Final = "INTERLOCK_"


def trigger_type(text: str) -> str:
    """Return the type of a trigger in our form, with dashes."""
    return text.replace("_", "-")


def trigger_config(trigger: Node, config: Node | None, kind: str) -> Node:
    """Return the config of a trigger in our format; unknown fields keep their names."""
    if config is None:
        return Node({}, trigger.line, trigger.column, trigger.path)
    found = renamed(_templates(config), _NAMES.get(kind, {}))
    if kind == "airflow":
        # Both generations support this version only.
        set_default(found, "api", "v1")
        _as_object(found, "conf")
    if kind == "emr":
        _as_list(found, "args")
    return found


def _templates(node: Node) -> Node:
    """Return a tree with the placeholders of our format."""
    value: Any = node.value
    if isinstance(value, dict):
        value = {key: _templates(child) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_templates(child) for child in value]
    elif isinstance(value, str):
        value = _TEMPLATE.sub(_template, value)
    return Node(value, node.line, node.column, node.path)


def _template(match: re.Match[str]) -> str:
    name = match.group(1)
    if name.startswith(_VARIABLE):
        return f"${{env:{name}}}"
    return f"${{{_TEMPLATES.get(name, name)}}}"


def _as_object(config: Node, name: str) -> None:
    """Decode a field with JSON text."""
    found = config.at(name)
    if found is None or not isinstance(found.value, str):
        return
    try:
        config.mapping()[name] = node_of(msgspec.json.decode(found.value), found)
    except msgspec.DecodeError:
        # The trigger registry reports what is allowed.
        return


def _as_list(config: Node, name: str) -> None:
    """Convert a mapping of arguments to the list of `key=value` of a step."""
    found = config.at(name)
    if found is not None and isinstance(found.value, dict):
        config.mapping()[name] = node_of([f"{key}={child.plain()}" for key, child in found.value.items()], found)
