"""Pages: the generated pages of docs/reference, by file name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from docs.generator.access_page import access_page
from docs.generator.alerts_page import alerts_page
from docs.generator.commands_page import commands_page
from docs.generator.definition_pages import pipeline_page, probes_page
from docs.generator.errors_page import errors_page
from docs.generator.events_page import events_page
from docs.generator.metrics_page import metrics_page
from docs.generator.python_page import python_page
from docs.generator.rest_pages import rest_pages
from docs.generator.settings_page import settings_page
from docs.generator.tables_page import tables_page
from docs.generator.triggers_page import triggers_page

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "python.md": python_page,
    "pipeline.md": pipeline_page,
    "probes.md": probes_page,
    "settings.md": settings_page,
    "alerts.md": alerts_page,
    "tables.md": tables_page,
    "errors.md": errors_page,
    "commands.md": commands_page,
    "access.md": access_page,
    "metrics.md": metrics_page,
    "events.md": events_page,
    "triggers.md": triggers_page,
    **dict(rest_pages()),
}
