"""The page of access: roles, permissions, and what each operation needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from docs.generator.markdown import NOTE
from docs.generator.served import served
from headgate.auth.roles import MATRIX, Permission, Role, roles_with
from headgate.auth.rules import Rule
from headgate.serve.graphql.schema import RULES
from headgate.serve.http.audited_operations import Unaudited
from headgate.serve.http.operations import Operation
from headgate.serve.rest.audited_actions import AUDITED

_ACCESS = """\
Every role and every operation, from the rules that the server checks. A caller has the permissions of all its roles.
A local program without a key has the role `admin`, unless `auth.required` is set. The defences and their tests:
[security](../security.md).

Outside of these tables:

- `/`, `/health`, `/health/live`, `/health/ready`, `/api` and `/api/openapi.json` need no permission.
- `/metrics` and `/health/deep` need `server.read`.
- A page below `/ui` shows what its caller may read with the operations below.
- `POST /callbacks/{run_id}` needs no key but the token of the run (header `headgate-callback-token`), which is valid
  for that run alone and expires. Its entry in the audit log is `run.callback`.
- `POST /notify/slack/{channel}` and `POST /notify/pagerduty/{channel}` need no key but the signature of Slack or
  PagerDuty with the secret of the channel. The acknowledgement has an entry under the person's name.
- The routes of a user's app need an authenticated caller, and check permissions themselves.

**Datasets** says which datasets a caller with limited scopes reaches:

- `none`: the operation is about no dataset; scopes do not matter.
- `all`: the operation is about all datasets; the scope must be unlimited.
- `named`: the request names the datasets; all of them must be in scope.
- `found`: the request names a resource, such as an incident or an alias; the dataset it belongs to must be in scope.
- `filtered`: the response lists only what is in scope.

**Audit** says how an operation that is not a GET is audited: the action of its own entry; `by the service`, in the
transaction of the change; `report`, what it writes is itself the record; `read`, it changes nothing.
"""


def access_page() -> str:
    operations, _, methods = served()
    ruled = [(f"{each.method} {each.path}", each.rule, audit_of(each)) for each in operations if each.rule is not None]
    calls = [(each.label, each.rule) for each in methods]
    return "\n".join(
        [
            "# Access",
            "",
            NOTE,
            _ACCESS,
            "## Roles and permissions",
            "",
            f"| Permission | {' | '.join(f'`{role}`' for role in Role)} |",
            f"|---|{':-:|' * len(Role)}",
            *(
                f"| `{permission}` | {' | '.join('yes' if permission in MATRIX[role] else '' for role in Role)} |"
                for permission in Permission
            ),
            "",
            "## REST operations",
            "",
            "Below `/api/v1`. `PATCH /incidents/{incident_id}` needs `incident.write` for more than `rca_summary`.",
            "",
            "| Operation | Permission | Datasets | Roles | Audit |",
            "|---|---|---|---|---|",
            *(f"{_access_row(name, rule)} {audit} |" for name, rule, audit in ruled),
            "",
            "## RPC methods",
            "",
            "Of the package `observability.statestore.v1`, over gRPC and Connect.",
            "",
            *_access_table("Method", calls),
            "## GraphQL fields",
            "",
            *_access_table("Field", RULES.items()),
        ]
    )


def audit_of(operation: Operation) -> str:
    if operation.method == "GET":
        return ""
    audited = AUDITED[operation.method, operation.path]
    return str(audited) if isinstance(audited, Unaudited) else f"`{audited.action}`"


def _access_table(noun: str, rules: Iterable[tuple[str, Rule]]) -> Iterator[str]:
    yield from (f"| {noun} | Permission | Datasets | Roles |", "|---|---|---|---|")
    for name, rule in rules:
        yield _access_row(name, rule)
    yield ""


def _access_row(name: str, rule: Rule | None) -> str:
    assert rule is not None, name
    return f"| `{name}` | `{rule.permission}` | {rule.reach} | {', '.join(roles_with(rule.permission))} |"
