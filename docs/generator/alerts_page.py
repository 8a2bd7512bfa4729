"""The page of alerts: the configuration of channels, routes and escalation."""

from __future__ import annotations

from typing import get_args

import msgspec

from docs.generator.markdown import NOTE, cell, code
from headgate.notify.configuration import CHANNEL_SPECS, NotifyConfig
from headgate.notify.decisions import EscalationStep
from headgate.notify.routes import Route


def alerts_page() -> str:
    lines = [
        "# Alerts",
        "",
        NOTE,
        "The section `[notify]` of `headgate.toml`, or the file `notify.toml` in the home folder; not both. The file",
        "may omit the name of the section: `[channels.ops]` there is `[notify.channels.ops]` in `headgate.toml`.",
        "Unknown fields are rejected. `headgate pipeline validate FOLDER` checks the format, and",
        "`headgate alert test` sends a message.",
        "",
        "A secret is a reference: `file:/path/of/it`, `aws-secret:NAME` or `aws-secret:NAME#key`.",
        "",
        *_fields_section("notify", NotifyConfig),
        *_fields_section("notify.routes[]", Route),
        *_fields_section("notify.escalation[]", EscalationStep),
    ]
    for spec in CHANNEL_SPECS:
        kind = str(spec.__struct_config__.tag)
        lines += _fields_section(f'notify.channels.NAME with kind = "{kind}"', spec)
    return "\n".join(lines)


def _fields_section(title: str, struct: type[msgspec.Struct]) -> list[str]:
    purpose = (struct.__doc__ or "").split("\n\n")[0]
    rows = []
    for each in msgspec.structs.fields(struct):
        described = [meta.description for meta in get_args(each.type)[1:] if meta.description]
        default = "required" if each.required else code(_default(each.default))
        rows.append(f"| `{each.encode_name}` | {default} | {cell(described[-1])} |")
    return [f"## `{title}`", "", purpose, "", "| Field | Default | For |", "|---|---|---|", *rows, ""]


def _default(value: object) -> str:
    if value in (None, (), "", {}, msgspec.NODEFAULT):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
