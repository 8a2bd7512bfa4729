"""Who may do what: every role, every permission, in and out of scope, written out."""

from __future__ import annotations

import pytest

from headgate.auth.principals import LOCAL, CredentialKind, Principal, checked_scopes, covers, may, require
from headgate.auth.roles import MATRIX, Permission, Role, permissions_of, role, roles_with
from headgate.errors import ForbiddenError, InvalidPayloadError, UnauthenticatedError

# Columns: signal_engine, alerting_engine, rca_copilot, lineage_ingestor, control_plane, enforcer, viewer, operator,
# service, admin. A letter is a yes. The table is what was agreed, and is not made from the code.
TABLE = """
                     sig  ale  rca  lin  con  enf  vie  ope  ser  adm
signal.read           y    y    y    .    y    .    y    y    y    y
signal.write          y    .    .    .    .    .    .    .    y    y
signal.link           .    y    .    .    .    .    .    .    y    y
evidence.read         y    y    y    .    .    .    y    y    y    y
evidence.write        y    .    .    .    .    .    .    .    y    y
incident.read         .    y    y    .    .    .    y    y    y    y
incident.write        .    y    .    .    .    .    .    y    y    y
incident.annotate     .    y    y    .    .    .    .    y    y    y
dataset.read          y    y    y    y    y    y    y    y    y    y
dataset.write         .    .    .    .    y    .    .    .    y    y
rule.read             y    .    y    .    y    y    y    y    y    y
rule.write            .    .    .    .    y    .    .    .    y    y
lineage.read          .    y    y    y    y    .    y    y    y    y
lineage.write         .    .    .    y    .    .    .    .    y    y
gate.check            .    .    .    .    .    y    y    y    y    y
gate.override         .    .    .    .    .    .    .    y    .    y
secret_fields.read    .    y    .    .    .    .    .    y    .    y
audit.read            .    .    .    .    y    .    .    y    .    y
key.manage            .    .    .    .    .    .    .    .    .    y
settings.read         .    .    .    .    .    .    .    .    .    y
execution.read        .    .    .    .    .    .    y    y    y    y
execution.write       .    .    .    .    .    .    .    y    y    y
fanout.read           .    .    .    .    .    .    y    y    y    y
fanout.write          .    .    .    .    .    .    .    y    y    y
event.read            .    .    .    .    .    .    y    y    y    y
event.write           .    .    .    .    .    .    .    y    y    y
schedule.read         .    .    .    .    .    .    y    y    y    y
schedule.write        .    .    .    .    .    .    .    y    y    y
pipeline.read         .    .    .    .    y    .    y    y    y    y
pipeline.push         .    .    .    .    y    .    .    y    y    y
pipeline.control      .    .    .    .    .    .    .    y    y    y
pipeline.define       .    .    .    .    .    .    .    .    .    y
server.read           .    .    .    .    .    .    y    y    y    y
"""
ROLES = (
    "signal_engine", "alerting_engine", "rca_copilot", "lineage_ingestor", "control_plane", "enforcer", "viewer",
    "operator", "service", "admin",
)  # fmt: skip
EXPECTED = {
    (name, line.split()[0]): mark == "y"
    for line in TABLE.strip().splitlines()[1:]
    for name, mark in zip(ROLES, line.split()[1:], strict=True)
}
INSIDE, OUTSIDE = "urn:dp:orders:created:v1", "urn:dp:payments:created:v1"


def test_matrix__given_every_role_and_permission__is_what_was_agreed() -> None:
    assert {name for name, _ in EXPECTED} == set(Role)
    assert {permission for _, permission in EXPECTED} == set(Permission)
    assert {(held, p) for held in MATRIX for p in Permission if p in MATRIX[held]} == {
        pair for pair, allowed in EXPECTED.items() if allowed
    }


@pytest.mark.parametrize("scopes", [("*",), ("urn:dp:orders:*",), ("urn:dp:payments:*",), ()])
def test_require__given_every_role_permission_and_scope__agrees_with_the_table(scopes: tuple[str, ...]) -> None:
    reach = {"*": {INSIDE, OUTSIDE}, "urn:dp:orders:*": {INSIDE}, "urn:dp:payments:*": {OUTSIDE}}
    reached = reach[scopes[0]] if scopes else set()
    for (name, permission), allowed in EXPECTED.items():
        principal = Principal("p", frozenset({Role(name)}), scopes)
        for urn in (INSIDE, OUTSIDE, None):
            expected = allowed and (urn is None or urn in reached)
            assert may(principal, Permission(permission), urn) is expected, (name, permission, urn)
            if expected:
                assert require(principal, Permission(permission), urn) is principal
            else:
                with pytest.raises(ForbiddenError):
                    require(principal, Permission(permission), urn)


def test_require__given_no_one__asks_who_it_is() -> None:
    with pytest.raises(UnauthenticatedError, match=r"dataset\.read"):
        require(None, Permission.DATASET_READ)


def test_require__given_missing_role__says_who_what_and_which_role() -> None:
    principal = Principal("dash", frozenset({Role.VIEWER}), ("*",))

    with pytest.raises(ForbiddenError) as caught:
        require(principal, Permission.DATASET_WRITE, INSIDE)

    assert caught.value.message == (
        f"dash: may not dataset.write on {INSIDE}; its roles are viewer, and this needs one of control_plane, service, "
        "admin"
    )


def test_require__given_dataset_out_of_scope__says_who_what_and_which_scopes() -> None:
    principal = Principal("dash", frozenset({Role.VIEWER}), ("urn:dp:orders:*",))

    with pytest.raises(ForbiddenError, match=r"dash: may signal.read, but not on urn:dp:payments.*urn:dp:orders:\*"):
        require(principal, Permission.SIGNAL_READ, OUTSIDE)


def test_require__given_several_roles__adds_them_up() -> None:
    principal = Principal("p", frozenset({Role.ENFORCER, Role.LINEAGE_INGESTOR}), ("*",))

    assert may(principal, Permission.GATE_CHECK)
    assert may(principal, Permission.LINEAGE_WRITE)
    assert not may(principal, Permission.SIGNAL_READ)
    assert permissions_of(()) == frozenset()
    assert not may(Principal("nobody", frozenset(), ("*",)), Permission.DATASET_READ)


@pytest.mark.parametrize(
    ("scope", "urn", "expected"),
    [
        ("urn:dp:orders:*", "urn:dp:orders:created", True),
        ("urn:dp:orders:*", "urn:dp:orders:created:v2", True),
        ("urn:dp:orders:*", "urn:dp:orders", False),
        ("urn:dp:orders:*", "urn:dp:orders2:created", False),
        ("urn:dp:orders:*", "URN:DP:ORDERS:CREATED", False),
        ("urn:dp:orders:*", "xurn:dp:orders:created", False),
        ("urn:dp:orders:created", "urn:dp:orders:created", True),
        ("urn:dp:orders:created", "urn:dp:orders:created:v1", True),
        ("urn:dp:orders:created:v1", "urn:dp:orders:created:v2", False),
        ("urn:dp:orders:created:v?", "urn:dp:orders:created:v1", True),
        ("urn:dp:orders:created:v?", "urn:dp:orders:created:v12", False),
        ("urn:dp:*:raw", "urn:dp:orders:eu:raw", True),
        ("urn:dp:*:raw", "urn:dp:orders:rawer", False),
        ("*", "anything", True),
        ("urn:dp:orders.eu:x", "urn:dp:orders-eu:x", False),
    ],
)
def test_reaches__given_pattern_and_name__matches_whole_names(scope: str, urn: str, expected: bool) -> None:
    assert Principal("p", frozenset(), (scope,)).reaches(urn) is expected


def test_reaches__given_newline_after_the_name__does_not_match() -> None:
    assert not Principal("p", frozenset(), ("urn:dp:a",)).reaches("urn:dp:a\n")


@pytest.mark.parametrize("scope", ["", "urn:dp:[a-z]", "urn dp", "urn:dp:a\n", "x" * 513, "urn:dp:a#b", "{}", "!"])
def test_checked_scopes__given_what_is_no_pattern__is_refused(scope: str) -> None:
    with pytest.raises(InvalidPayloadError):
        checked_scopes(["*", scope])


def test_checked_scopes__given_many__keeps_each_once_up_to_a_limit() -> None:
    assert checked_scopes(["urn:dp:b", "urn:dp:a:*", "urn:dp:b"]) == ("urn:dp:b", "urn:dp:a:*")
    with pytest.raises(InvalidPayloadError):
        checked_scopes(f"urn:dp:d{number}" for number in range(101))


def test_local__may_do_everything() -> None:
    assert LOCAL.name == "local"
    assert LOCAL.kind is CredentialKind.LOCAL
    assert all(may(LOCAL, permission, INSIDE) for permission in Permission)


@pytest.mark.parametrize(
    ("holder_roles", "holder_scopes", "roles", "scopes", "expected"),
    [
        ("admin", ("*",), "service", ("*",), True),
        ("admin", ("urn:dp:orders:*",), "admin", ("urn:dp:orders:*",), True),
        ("admin", ("urn:dp:orders:*",), "viewer", ("urn:dp:orders:created",), True),
        ("admin", ("urn:dp:orders:*",), "viewer", ("*",), False),
        ("admin", ("urn:dp:orders:*",), "viewer", ("urn:dp:*",), False),
        # A pattern is not taken for a name, even where it looks like one inside: '*' would match it as a character.
        ("admin", ("urn:dp:orders:*",), "viewer", ("urn:dp:orders:a*",), False),
        ("admin", ("urn:dp:orders:*",), "viewer", ("urn:dp:orders:x", "urn:dp:payments:x"), False),
        ("operator", ("*",), "viewer", ("*",), True),
        ("operator", ("*",), "admin", ("*",), False),
        ("operator", ("*",), "alerting_engine", ("*",), False),
    ],
)
def test_covers__given_rights_to_give__only_those_held(
    holder_roles: str, holder_scopes: tuple[str, ...], roles: str, scopes: tuple[str, ...], expected: bool
) -> None:
    holder = Principal("h", frozenset({Role(holder_roles)}), holder_scopes)

    assert covers(holder, [Role(roles)], scopes) is expected


def test_role__given_names__reads_them_and_refuses_others() -> None:
    assert role(" RCA-Copilot ") is Role.RCA_COPILOT
    with pytest.raises(InvalidPayloadError, match="signal_engine"):
        role("root")


def test_roles_with__given_permission__names_the_least_first() -> None:
    assert roles_with(Permission.GATE_OVERRIDE) == [Role.OPERATOR, Role.ADMIN]
    assert roles_with(Permission.LINEAGE_WRITE) == [Role.LINEAGE_INGESTOR, Role.SERVICE, Role.ADMIN]
