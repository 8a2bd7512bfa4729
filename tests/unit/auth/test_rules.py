"""Rules of routes: which datasets a request names, and who is let in."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from headgate.auth.principals import LOCAL, Principal
from headgate.auth.roles import Permission, Role
from headgate.auth.rules import Reach, Rule, filtered, found, incident_update, named
from headgate.errors import ForbiddenError, UnauthenticatedError

INSIDE, OUTSIDE = "urn:dp:orders:created:v1", "urn:dp:payments:created:v1"
LIMITED = Principal("p", frozenset({Role.SERVICE}), ("urn:dp:orders:*",))
UNLIMITED = Principal("q", frozenset({Role.SERVICE}), ("*",))


@dataclass
class Item:
    dataset_urn: str = ""


@dataclass
class Request:
    dataset_urn: str = ""
    urn: str = ""
    evidence: list[Item] = field(default_factory=list)
    dataset_urns: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("fields", "request_", "expected"),
    [
        (("dataset_urn",), Request(INSIDE), [INSIDE]),
        (("dataset_urn",), {"dataset_urn": INSIDE}, [INSIDE]),
        (("dataset_urn",), Request(""), []),
        (("dataset_urn",), {}, []),
        (("dataset_urn",), None, []),
        (("dataset_urn",), {"dataset_urn": {"x": INSIDE}}, []),
        (("dataset_urn",), {"dataset_urn": 7}, []),
        (("evidence.dataset_urn",), Request(evidence=[Item(INSIDE), Item(OUTSIDE)]), [INSIDE, OUTSIDE]),
        (("dataset_urns",), Request(dataset_urns=(INSIDE, OUTSIDE)), [INSIDE, OUTSIDE]),
        (("path.dataset_urn",), {"path": {"dataset_urn": INSIDE}, "body": None}, [INSIDE]),
        (("path.u", "body.dataset_urn"), {"path": {"u": INSIDE}, "body": Request(OUTSIDE)}, [INSIDE, OUTSIDE]),
        (("urn",), Request(urn=f"urn:col:{INSIDE}:amount"), [INSIDE]),
        (("dataset_urn.x",), Request(INSIDE), []),
    ],
)
def test_datasets__given_fields__finds_them_wherever_they_are(
    fields: tuple[str, ...], request_: object, expected: list[str]
) -> None:
    assert named(Permission.SIGNAL_READ, *fields).datasets(request_) == expected


def test_datasets__given_function__asks_it() -> None:
    rule = Rule(Permission.SIGNAL_READ, Reach.NAMED, lambda request: [request["a"], request["b"]])

    assert rule.datasets({"a": INSIDE, "b": f"urn:col:{OUTSIDE}:x"}) == [INSIDE, OUTSIDE]


@pytest.mark.parametrize(
    ("rule", "request_", "limited_may"),
    [
        (Rule(Permission.SIGNAL_READ), {}, True),
        (Rule(Permission.SIGNAL_READ, Reach.ALL), {}, False),
        (named(Permission.SIGNAL_READ), {"dataset_urn": INSIDE}, True),
        (named(Permission.SIGNAL_READ), {"dataset_urn": OUTSIDE}, False),
        (named(Permission.SIGNAL_READ), {}, False),
        (named(Permission.EVIDENCE_WRITE, "evidence.dataset_urn"), Request(evidence=[Item(INSIDE)]), True),
        (
            named(Permission.EVIDENCE_WRITE, "evidence.dataset_urn"),
            Request(evidence=[Item(INSIDE), Item(OUTSIDE)]),
            False,
        ),
        (found(Permission.INCIDENT_READ), {"dataset_urn": OUTSIDE}, True),
        (filtered(Permission.INCIDENT_READ), {}, True),
        (filtered(Permission.INCIDENT_READ), {"dataset_urn": INSIDE}, True),
        (filtered(Permission.INCIDENT_READ), {"dataset_urn": OUTSIDE}, False),
    ],
)
def test_admit__given_limited_principal__lets_it_to_its_own_datasets(
    rule: Rule, request_: object, limited_may: bool
) -> None:
    assert rule.admit(UNLIMITED, request_) is UNLIMITED
    assert rule.admit(LOCAL, request_) is LOCAL
    if limited_may:
        assert rule.admit(LIMITED, request_) is LIMITED
    else:
        with pytest.raises(ForbiddenError, match="p: may"):
            rule.admit(LIMITED, request_)


@pytest.mark.parametrize("reach", list(Reach))
def test_admit__given_missing_permission_or_no_one__refuses_whatever_the_reach(reach: Reach) -> None:
    rule = Rule(Permission.KEY_MANAGE, reach, ("dataset_urn",))

    with pytest.raises(ForbiddenError, match="needs one of admin"):
        rule.admit(UNLIMITED, {"dataset_urn": INSIDE})
    with pytest.raises(UnauthenticatedError):
        rule.admit(None, {"dataset_urn": INSIDE})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["rca_summary"], Permission.INCIDENT_ANNOTATE),
        ([], Permission.INCIDENT_ANNOTATE),
        (["rca_summary", "status"], Permission.INCIDENT_WRITE),
        (["oncall_user"], Permission.INCIDENT_WRITE),
    ],
)
def test_incident_update__given_fields__asks_for_the_least_that_is_enough(
    fields: list[str], expected: Permission
) -> None:
    assert incident_update(fields) is expected
