"""Typed commands: functions that are called by name at `/rpc/NAME`, and optionally at a method and path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec

from headgate import typed_decode
from headgate.durable.http.inputs import Input, Params, RestInput, parameters_of
from headgate.durable.http.messages import WITHOUT_BODY, Request, Response, to_json
from headgate.durable.http.paths import RPC, PathTemplate
from headgate.durable.http.routes import is_async, takes
from headgate.errors import BadOutputError, DefinitionError

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")


class Command:
    """A function with typed input and output. Both are validated for every call.

    The input is the function's parameter, or an object of its parameters if there are several; a parameter that is
    annotated as a `Request` gets the request. The output has the type of the return annotation.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        name: str,
        method: str | None = None,
        template: PathTemplate | None = None,
        params: Params | None = None,
        summary: str = "",
        description: str = "",
        status: int = HTTPStatus.OK,
    ) -> None:
        """Raises `DefinitionError` if the function cannot be a command, or not at this method and path."""
        what = f"command {name!r}"
        if not _NAME.fullmatch(name):
            raise DefinitionError(f"{what}: use up to 128 letters, digits, '_', '.' and '-', beginning with a letter")
        takes(handler, 0, what)
        parameters, hints = parameters_of(handler, what)
        _check_types(hints, what)
        self.name = name
        self.handler = handler
        self.is_async = is_async(handler)
        self.summary = summary
        self.description = description
        self.output: Any = hints.get("return", Any)
        self.status = self._checked_status(status, what)
        self._request = next((each.name for each in parameters if hints.get(each.name) is Request), None)
        self.input = Input(name, [each for each in parameters if each.name != self._request], hints)
        self.method = method
        self.template = template
        self.rest_input = (
            RestInput(self.input, method, template, params or {})
            if method is not None and template is not None
            else None
        )
        self._decode_output = typed_decode.json_decoder(self.output).decode

    @property
    def has_output(self) -> bool:
        return self.output is not None and self.output is not type(None)

    @property
    def path(self) -> str | None:
        """The template of its path, if it has one besides `/rpc/NAME`."""
        return None if self.template is None else self.template.text

    @property
    def rpc_template(self) -> PathTemplate:
        """The path `/rpc/NAME`."""
        return PathTemplate.parse(f"/{RPC}/{self.name}")

    def call(self, request: Request, arguments: Mapping[str, Any]) -> Callable[[], Any]:
        """Return the call of the handler with these arguments, and with the request if the handler takes one."""
        all_arguments = {**arguments, self._request: request} if self._request is not None else arguments
        return partial(self.handler, **all_arguments)

    def response(self, result: object, status: int) -> Response:
        """Return the output as a response. Raises `BadOutputError` if it does not match its annotation."""
        content = to_json(result, f"output of command {self.name}")
        try:
            self._decode_output(content)
        except msgspec.ValidationError as exc:
            raise BadOutputError(f"output of command {self.name}: it is not what its annotation says: {exc}") from exc
        if not self.has_output:
            return Response(HTTPStatus.NO_CONTENT if status == HTTPStatus.OK else status)
        return Response(status, content, headers={"content-type": "application/json"})

    def _checked_status(self, status: int, what: str) -> int:
        if not any(status == known for known in HTTPStatus) or not HTTPStatus.OK <= status < HTTPStatus.BAD_REQUEST:
            raise DefinitionError(f"{what}: status {status!r}: use a status of success, 200 to 308")
        if self.has_output and status in WITHOUT_BODY:
            raise DefinitionError(f"{what}: status {status} has no body, and there is an output; choose another")
        return int(status)


class RpcEndpoint(msgspec.Struct, frozen=True):
    """A command called with its input as the body."""

    command: Command

    @property
    def handler(self) -> Callable[..., Any]:
        return self.command.handler

    @property
    def is_async(self) -> bool:
        return self.command.is_async

    def bind(self, request: Request) -> Callable[[], Any]:
        return self.command.call(request, self.command.input.decode(request))

    def response(self, result: object) -> Response:
        return self.command.response(result, HTTPStatus.OK)


class RestEndpoint(msgspec.Struct, frozen=True):
    """A command called with its input in path, query, headers and body."""

    command: Command
    input: RestInput

    @property
    def handler(self) -> Callable[..., Any]:
        return self.command.handler

    @property
    def is_async(self) -> bool:
        return self.command.is_async

    def bind(self, request: Request) -> Callable[[], Any]:
        return self.command.call(request, self.input.gather(request))

    def response(self, result: object) -> Response:
        return self.command.response(result, self.command.status)


def _check_types(hints: Mapping[str, Any], what: str) -> None:
    for name, kind in hints.items():
        if kind is Response:
            raise DefinitionError(f"{what}: it returns a Response; declare a route for that, or return plain data")
        if kind is Request and name != "return":
            continue
        try:
            msgspec.json.schema_components([kind])
        except (TypeError, ValueError, NameError) as exc:
            fact = str(exc).partition("\n")[0]
            raise DefinitionError(f"{what}: {name}: {kind!r} has no form in JSON: {fact}") from exc
