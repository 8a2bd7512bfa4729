"""Roles and permissions: the complete matrix of what each role may do."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from headgate.errors import InvalidPayloadError


class Permission(enum.StrEnum):
    """A permission on a kind of resource. Reading includes listing, querying and watching; writing includes batches."""

    SIGNAL_READ = "signal.read"
    SIGNAL_WRITE = "signal.write"
    # Link a signal to an incident only.
    SIGNAL_LINK = "signal.link"
    EVIDENCE_READ = "evidence.read"
    EVIDENCE_WRITE = "evidence.write"
    INCIDENT_READ = "incident.read"
    INCIDENT_WRITE = "incident.write"
    # Set an incident's root-cause summary (`rca_summary`) only.
    INCIDENT_ANNOTATE = "incident.annotate"
    DATASET_READ = "dataset.read"
    DATASET_WRITE = "dataset.write"
    RULE_READ = "rule.read"
    RULE_WRITE = "rule.write"
    LINEAGE_READ = "lineage.read"
    LINEAGE_WRITE = "lineage.write"
    GATE_CHECK = "gate.check"
    GATE_OVERRIDE = "gate.override"
    # See contact fields of incidents, which are masked for other roles.
    SECRET_FIELDS_READ = "secret_fields.read"
    AUDIT_READ = "audit.read"
    KEY_MANAGE = "key.manage"
    # The effective settings of the server, without secrets.
    SETTINGS_READ = "settings.read"
    EXECUTION_READ = "execution.read"
    EXECUTION_WRITE = "execution.write"
    FANOUT_READ = "fanout.read"
    FANOUT_WRITE = "fanout.write"
    EVENT_READ = "event.read"
    EVENT_WRITE = "event.write"
    SCHEDULE_READ = "schedule.read"
    SCHEDULE_WRITE = "schedule.write"
    PIPELINE_READ = "pipeline.read"
    # Push sensor data, start runs and report job outcomes.
    PIPELINE_PUSH = "pipeline.push"
    # Pause, hold, skip, cancel, rerun.
    PIPELINE_CONTROL = "pipeline.control"
    # Define pipelines, whose jobs run with the server's rights.
    PIPELINE_DEFINE = "pipeline.define"
    # Metrics, workers and the deep health check.
    SERVER_READ = "server.read"


class Role(enum.StrEnum):
    """The role of a principal."""

    SIGNAL_ENGINE = "signal_engine"
    ALERTING_ENGINE = "alerting_engine"
    RCA_COPILOT = "rca_copilot"
    LINEAGE_INGESTOR = "lineage_ingestor"
    CONTROL_PLANE = "control_plane"
    ENFORCER = "enforcer"
    VIEWER = "viewer"
    OPERATOR = "operator"
    SERVICE = "service"
    ADMIN = "admin"


_P = Permission
_HEALTH_READ: Final = frozenset(
    {_P.SIGNAL_READ, _P.EVIDENCE_READ, _P.INCIDENT_READ, _P.DATASET_READ, _P.RULE_READ, _P.LINEAGE_READ}
)
_WORK_READ: Final = frozenset(
    {_P.EXECUTION_READ, _P.FANOUT_READ, _P.EVENT_READ, _P.SCHEDULE_READ, _P.PIPELINE_READ, _P.SERVER_READ}
)
_WORK_WRITE: Final = frozenset(
    {
        _P.EXECUTION_WRITE, _P.FANOUT_WRITE, _P.EVENT_WRITE, _P.SCHEDULE_WRITE, _P.PIPELINE_PUSH,
        _P.PIPELINE_CONTROL,
    }
)  # fmt: skip
_VIEWER: Final = _HEALTH_READ | _WORK_READ | {_P.GATE_CHECK}
_EVERYTHING: Final = frozenset(Permission)

MATRIX: Final[Mapping[Role, frozenset[Permission]]] = {
    # Evaluates datasets: needs what is promised of them, and its own earlier answers.
    Role.SIGNAL_ENGINE: frozenset(
        {_P.SIGNAL_READ, _P.SIGNAL_WRITE, _P.EVIDENCE_READ, _P.EVIDENCE_WRITE, _P.DATASET_READ, _P.RULE_READ}
    ),
    # Opens incidents for signals, with their evidence and blast radius, and notifies the on-call engineer.
    Role.ALERTING_ENGINE: frozenset(
        {
            _P.SIGNAL_READ, _P.SIGNAL_LINK, _P.EVIDENCE_READ, _P.INCIDENT_READ, _P.INCIDENT_WRITE,
            _P.INCIDENT_ANNOTATE, _P.DATASET_READ, _P.LINEAGE_READ, _P.SECRET_FIELDS_READ,
        }
    ),
    Role.RCA_COPILOT: _HEALTH_READ | {_P.INCIDENT_ANNOTATE},
    Role.LINEAGE_INGESTOR: frozenset({_P.LINEAGE_READ, _P.LINEAGE_WRITE, _P.DATASET_READ}),
    # Maintains the registry, reads the effects of its changes, and pushes data to pipelines.
    Role.CONTROL_PLANE: frozenset(
        {
            _P.DATASET_READ, _P.DATASET_WRITE, _P.RULE_READ, _P.RULE_WRITE, _P.LINEAGE_READ, _P.SIGNAL_READ,
            _P.AUDIT_READ, _P.PIPELINE_READ, _P.PIPELINE_PUSH,
        }
    ),
    # Runs in the data stream: resolves the dataset of a message and checks its gate.
    Role.ENFORCER: frozenset({_P.DATASET_READ, _P.RULE_READ, _P.GATE_CHECK}),
    Role.VIEWER: _VIEWER,
    # On call.
    Role.OPERATOR: _VIEWER
    | _WORK_WRITE
    | {_P.INCIDENT_WRITE, _P.INCIDENT_ANNOTATE, _P.GATE_OVERRIDE, _P.SECRET_FIELDS_READ, _P.AUDIT_READ},
    # Programs that run pipelines, including other Headgate processes. Without permissions reserved for people.
    Role.SERVICE: _EVERYTHING
    - {
        _P.GATE_OVERRIDE, _P.SECRET_FIELDS_READ, _P.AUDIT_READ, _P.KEY_MANAGE, _P.SETTINGS_READ, _P.PIPELINE_DEFINE,
    },
    Role.ADMIN: _EVERYTHING,
}  # fmt: skip


def permissions_of(roles: Iterable[Role]) -> frozenset[Permission]:
    """Return the permissions of these roles."""
    return _permissions_of(frozenset(roles))


# Cached: every call needs it, and there are few combinations.
@lru_cache(maxsize=1024)
def _permissions_of(roles: frozenset[Role]) -> frozenset[Permission]:
    return frozenset().union(*(MATRIX[role] for role in roles))


def roles_with(permission: Permission) -> list[Role]:
    """Return the roles with a permission, the least privileged first."""
    roles = (role for role, permissions in MATRIX.items() if permission in permissions)
    return sorted(roles, key=lambda role: len(MATRIX[role]))


def role(name: str) -> Role:
    """Return the role of this name. Raises `InvalidPayloadError`."""
    try:
        return Role(name.strip().lower().replace("-", "_"))
    except ValueError as exc:
        raise InvalidPayloadError(f"role {name[:40]!r}: there is none; use one of {', '.join(Role)}") from exc
