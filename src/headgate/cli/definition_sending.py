"""Definitions that are sent to a server as the texts that people wrote, with their comments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headgate.cli import api as api_module
from headgate.cli.api import Api, at
from headgate.cli.pipeline_views import pages
from headgate.errors import DefinitionError

if TYPE_CHECKING:
    from headgate.pipelines.loading import LoadedPipeline

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
    given = {name: value for name, value in query.items() if value is not None}
    with api._client() as client:
        answer = client.request(method, path, params=given, content=text.encode(), headers={"content-type": YAML})
        refusal = _refusal(answer.content) if answer.is_error else None
        if refusal is not None:
            raise refusal
        return api_module._answer(answer)


def _refusal(content: bytes) -> DefinitionError | None:
    """Return what a server that refuses a definition says of it."""
    import msgspec

    try:
        problem = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    is_one = problem.get("code") == DefinitionError.code and "detail" in problem
    return DefinitionError(str(problem["detail"])) if is_one else None
