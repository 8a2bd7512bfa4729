"""Session API: the people who are signed in to the pages, and the end of a session."""

from __future__ import annotations

from typing import Annotated, Final

from litestar.types import ControllerRouterHandler
from msgspec import Meta, Struct

from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.auth.sessions import Sessions, SignedIn
from headgate.serve.http.operations import AccessPolicy, Answer, Auditing, Call, NoQuery, Operation, operation_routes
from headgate.serve.http.problem import Problem
from headgate.serve.rest.parameters import PageToken
from headgate.serve.runtime.thread_pool import WorkPool

_RULE: Final = Rule(Permission.KEY_MANAGE, Reach.NONE)


class SessionQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Page of sessions."""

    page_token: PageToken | None = None
    page_size: Annotated[int, Meta(ge=1, le=100)] = 100


class SessionPage(Struct, frozen=True):
    """A page of sessions, latest first. It may be short or empty and still have a next page."""

    items: list[SignedIn]
    next_page_token: str | None = None


def session_routes(
    sessions: Sessions, pool: WorkPool, *, auditing: Auditing | None = None
) -> list[ControllerRouterHandler]:
    """Return the routes of sessions, for administrators."""

    def ls(call: Call[None, SessionQuery]) -> Answer:
        page = sessions.ls(limit=call.query.page_size, cursor=call.query.page_token)
        return Answer(SessionPage(page.sessions, page.cursor))

    def end(call: Call[None, NoQuery]) -> Answer:
        return Answer(sessions.end_by_id(call.path["sign_in_id"], actor=call.principal))

    one = "/sessions/{sign_in_id}"
    operations = [
        Operation("GET", "/sessions", "List who is signed in", ls, {200: SessionPage}, query=SessionQuery, rule=_RULE),
        Operation("DELETE", one, "End a session", end, {200: SignedIn, 404: Problem}, rule=_RULE),
    ]
    policy = AccessPolicy(Permission.KEY_MANAGE, Permission.KEY_MANAGE)
    return operation_routes(operations, pool, policy, namespace="server.", auditing=auditing)
