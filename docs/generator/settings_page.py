"""The page of settings."""

from __future__ import annotations

from docs.generator.markdown import NOTE, cell, code
from headgate.settings import describe


def settings_page() -> str:
    rows = [
        f"| `{row.key}` | `{row.variable}` | {cell(row.allowed)} | {code(row.default)} | {cell(row.description)} |"
        for row in describe()
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            NOTE,
            "Later sources take precedence: the file `headgate.toml` (or that of `--config` or `HEADGATE_CONFIG`),",
            "then the environment, then flags.",
            "In the file, a dot is a section: `store.backend` is `backend` in `[store]`. Unknown names are rejected.",
            "",
            "| Key | Variable | Allowed | Default | For |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
