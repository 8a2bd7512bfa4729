"""Types that apps could have, and a way to call a router without any server."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable, Coroutine
from datetime import date
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from headgate.durable.http.router import BadInputError, Request, Response, Router


class Colour(enum.Enum):
    RED = "red"


class Line(msgspec.Struct):
    sku: str
    count: int = 1


class Order(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    order_id: str
    total_price: int
    lines: list[Line] = []


class Search(msgspec.Struct):
    shop: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    colours: list[Colour] = []
    since: date | None = None
    exact: bool = False


@dataclasses.dataclass
class Receipt:
    number: int


class Patch(TypedDict, total=False):
    id: str
    note: str


class Odd:
    pass


def never(_coroutine: Coroutine[Any, Any, Any]) -> Any:
    raise AssertionError("this handler is not async")


def call(
    router: Router, method: str, raw_path: str, *, wait: Callable[[Coroutine[Any, Any, Any]], Any] = never, **more: Any
) -> Response:
    """Answer a request as a server would, from the path on."""
    match = router.match(method, raw_path)
    assert match is not None
    assert match.route is not None
    request = Request(method=method, path=raw_path, path_params=match.path_params, **more)
    return match.route.respond(request, wait)


def body_of(response: Response) -> Any:
    return json.loads(response.to_wire().body)


def problems_of(caught: pytest.ExceptionInfo[BadInputError]) -> list[tuple[str, str]]:
    return [(problem.source, problem.key) for problem in caught.value.problems]


def declared(*declarations: tuple[str, str]) -> Router:
    router = Router()
    for method, path in declarations:
        router.route(method, path)(lambda request: dict(request.path_params))
    return router
