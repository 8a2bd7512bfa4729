"""The page of triggers, with every field of their config."""

from __future__ import annotations

from docs.generator.field_tables import fields_of, fields_table, nested_structs, summary
from docs.generator.markdown import NOTE
from headgate.pipelines.authoring.field_descriptions import DESCRIPTIONS as PIPELINE_FIELDS
from headgate.pipelines.definition.model import TriggerSpec
from headgate.triggers.field_descriptions import DESCRIPTIONS as FIELD_DESCRIPTIONS
from headgate.triggers.kinds import BUILT_IN

_TRIGGERS = """\
Every kind of trigger with every field of its `config`. `headgate pipeline schema` prints the same as a JSON Schema for
editors, with the kinds of installed packages; `headgate pipeline validate` refuses a config that does not fit it.

Texts may contain `${date}`, `${date_compact}`, `${day_compact}`, `${year}`, `${week}`, `${month}`, `${day}`, `${hour}`,
`${minute}`, `${schedule}`, `${pipeline}`, `${run_id}`, `${attempt}`; of a job that calls back, `${callback_url}` and
`${callback_token}`. `$${` stands for `${`. Fields that may hold secrets also take `${env:HG_SECRET_NAME}` and
`${file:NAME}`, a file below `HOME/secrets`. Relative paths are below the project folder. A duration is a number of
seconds or a text such as `90s`, `5m` or `1h30m`.

Beside `type` and `config`, every trigger has these fields:
"""


def triggers_page() -> str:
    lines = ["# Triggers", "", NOTE, _TRIGGERS]
    own = [field for field in fields_of(TriggerSpec) if field.name not in ("type", "config")]
    lines += fields_table(own, "TriggerSpec", PIPELINE_FIELDS)
    for name, kind in BUILT_IN.items():
        secrets = ", ".join(f"`{field}`" for field in sorted(kind.secret_fields))
        notes = [
            *(["Only definitions of the project folder may use it."] if kind.is_local else []),
            *([f"May hold secrets: {secrets}."] if secrets else []),
        ]
        lines += [f"## {name}", "", " ".join([summary(kind.config_type), *notes]), ""]
        lines += fields_table(fields_of(kind.config_type), name, FIELD_DESCRIPTIONS)
        for nested in nested_structs(kind.config_type):
            field = next(field for field, cls in nested.items())
            cls = nested[field]
            lines += [f"### {name}: {field}", "", summary(cls), ""]
            lines += fields_table(fields_of(cls), cls.__name__, FIELD_DESCRIPTIONS)
    return "\n".join(lines)
