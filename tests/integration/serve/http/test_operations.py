"""How operations are found, and what they are given."""

from __future__ import annotations

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.serve.http.operations import AccessPolicy, Answer, Call, NoQuery, Operation, operation_routes
from tests.integration.serve.conftest import Application
from tests.integration.serve.durable_api import problem


class Seen(Struct):
    """What an operation was given."""

    what: str


class Many(Struct, forbid_unknown_fields=True):
    """A query with a list and a flag."""

    tag: list[str] = []
    flag: bool = False


def _named(call: Call[None, Many]) -> Answer:
    return Answer(Seen(f"{call.path['id']} {call.query.tag} {call.query.flag}"))


async def _special(_call: Call[None, NoQuery]) -> Answer:
    return Answer(Seen("special"))


def _serve(application: Application) -> None:
    operations = [
        Operation("GET", "/things/{id}", "One", _named, {200: Seen}, query=Many),
        Operation("PUT", "/things/{id}", "Change one", _named, {200: Seen}, query=Many),
        Operation("GET", "/things/special", "The special one", _special, {200: Seen}),
    ]
    application.routes = operation_routes(
        operations, application.pool, AccessPolicy(Permission.EXECUTION_READ, Permission.EXECUTION_WRITE)
    )


def test_find__text_and_parameter__the_text_is_better_and_the_other_methods_remain(application: Application) -> None:
    _serve(application)

    assert application.ask("GET", "/api/v1/things/special").json() == {"what": "special"}
    assert application.ask("PUT", "/api/v1/things/special").json() == {"what": "special [] False"}
    assert application.ask("GET", "/api/v1/things/special/").json() == {"what": "special"}
    assert application.ask("POST", "/api/v1/things/special").headers["allow"] == "GET, PUT"


def test_find__encoded__is_decoded_once(application: Application) -> None:
    _serve(application)

    assert application.ask("GET", "/api/v1/things/a%2Fb%252F").json() == {"what": "a/b%2F [] False"}
    problem(application.ask("GET", "/api/v1/things/..%2Fx"), 404, "not_found")


def test_query__list_and_flag__are_read_and_others_refused(application: Application) -> None:
    _serve(application)

    answer = application.ask("GET", "/api/v1/things/a?tag=1&tag=%E2%98%83&flag=true")

    assert answer.json() == {"what": "a ['1', '☃'] True"}
    problem(application.ask("GET", "/api/v1/things/a?tags=1"), 400, "bad_payload")
    problem(application.ask("GET", "/api/v1/things/a?flag=perhaps"), 400, "bad_payload")
    problem(application.ask("GET", "/api/v1/things/a?" + "tag=1&" * 101), 400, "bad_payload")
    problem(application.ask("GET", "/api/v1/things/special?x=1"), 400, "bad_payload")


def test_routes_of_others__same_prefix__are_left_alone(application: Application) -> None:
    _serve(application)

    problem(application.ask("GET", "/api/v1/nothing"), 404, "not_found")
    assert application.ask("GET", "/api/openapi.json").status_code == 200
    assert application.ask("GET", "/health").status_code == 200


def test_options__path_with_operations__allows_the_methods_of_the_most_specific_path(application: Application) -> None:
    _serve(application)

    answer = application.ask("OPTIONS", "/api/v1/things/special")

    assert (answer.status_code, answer.headers["allow"], answer.content) == (204, "GET, OPTIONS", b"")
    assert application.ask("OPTIONS", "/api/v1/things/special/none/such").status_code == 404
