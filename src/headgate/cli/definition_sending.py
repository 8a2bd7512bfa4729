"""Definitions that are sent to a server as the texts that people wrote, with their comments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headgate.cli.api import Api, at
from headgate.cli.pipeline_views import pages

if TYPE_CHECKING:
    from headgate.pipelines.authoring.loader import LoadedPipeline

YAML: Final = "application/yaml"


def kept(api: Api) -> dict[str, dict[str, Any]]:
    """Return the pipelines that a server has, by id."""
    return {each["id"]: each for each in pages(api, "/pipelines", "pipelines")}


def put(api: Api, loaded: LoadedPipeline, reason: str | None) -> dict[str, Any]:
    """Define a pipeline by its text, and return it as it is kept. Raises as `Api.request` does."""
    answer: dict[str, Any] = send(api, "PUT", at("pipelines", loaded.pipeline.id), loaded.text, reason=reason)
    return answer


def send(api: Api, method: str, path: str, text: str, **query: str | None) -> Any:  # noqa: ANN401 - JSON
    """Send a text as it is, and return the answer.

    Raises `DefinitionError` for one that the server finds wrong, and else as `Api.request` does.
    """
    return api.send(method, path, text, YAML, query=query)
