"""Help of command groups: whole first sentences, wrapped at the width of the terminal, in named sections."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperGroup

from headgate.exit_codes import ExitCode

# Help follows the terminal up to this width; longer lines are hard to read.
WIDTH_MAX: Final = 120
SECTIONS: Final = {
    "Run Headgate": ("up", "demo", "worker", "watchdog", "init", "doctor", "reload", "open", "completion", "version"),
    "Pipelines": (
        "pipeline", "run", "period", "backfill", "schedule", "expect", "alert", "sensor", "trait", "marker", "probe",
        "pool", "calendar",
    ),
    "Data": ("dataset", "gate", "incident", "signal", "check", "evidence", "lineage", "job"),
    "Work": ("execution", "workflow", "deploy", "event", "asl", "fanout", "chunk"),
    "Operate": (
        "backup", "restore", "upgrade", "vacuum", "table", "settings", "api-key", "key", "session", "audit", "region",
        "aws",
    ),
}  # fmt: skip
"""Sections of the root help. Commands that none names follow under "Other"."""


class HelpGroup(TyperGroup):
    """Command group that lists the whole first sentence of each command."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - of click, which typer does not export
        """Write the commands that are not hidden, as sections if they are those of the root."""
        shown = {name: each for name in self.list_commands(ctx) if not (each := self.commands[name]).hidden}
        if ctx.parent is not None:
            _write(formatter, "Commands", shown, list(shown))
            return
        placed = {name for names in SECTIONS.values() for name in names}
        others = tuple(name for name in shown if name not in placed)
        for title, names in {**SECTIONS, "Other": others}.items():
            _write(formatter, title, shown, [name for name in names if name in shown])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(each)), each.meaning) for each in ExitCode])


def _write(formatter: Any, title: str, commands: dict[str, Any], names: list[str]) -> None:  # noqa: ANN401
    if names:
        with formatter.section(title):
            formatter.write_dl([(name, first_sentence(commands[name].help or "")) for name in names])


def first_sentence(text: str) -> str:
    """Return a help text up to its first full stop."""
    words = " ".join(text.split())
    sentence, stop, _ = words.partition(". ")
    return sentence + stop.rstrip()
