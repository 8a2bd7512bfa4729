"""Settings page: the server and the reader, API keys and sessions with their actions, and the settings in effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission, Role
from headgate.health.model.timestamps import milliseconds
from headgate.serve.pages.actions import Action, Field, FieldKind, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.labels import command
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, chips
from headgate.setting_sources import SettingOrigin

ADDRESS: Final = "/ui/settings"
FILTERS: Final = ("show", "search", "keys")
KEYS_MAX: Final = 100
# From this time before its expiry on, a key is marked.
EXPIRING_MS: Final = 7 * 86_400_000
_ALL: Final = "all"
_ORIGINS: Final[Mapping[str, str]] = {
    SettingOrigin.DEFAULT: "default",
    SettingOrigin.FILE: "file",
    SettingOrigin.ENVIRONMENT: "environment",
    SettingOrigin.COMMAND_LINE: "command line",
}


class KeyRow(Struct, frozen=True, kw_only=True):
    """An API key with its state, and its actions while it is valid."""

    key: Any
    state: str
    actions: tuple[Action, ...]


class SettingRow(Struct, frozen=True, kw_only=True):
    """A setting with its value as text."""

    setting: Any
    value: str
    origin: str


class SettingsPage(Struct, frozen=True, kw_only=True):
    """View of the page."""

    server: Section
    rows: list[SettingRow]
    chips: list[Chip]
    keys: Section
    key_rows: list[KeyRow]
    key_chips: list[Chip]
    has_more_keys: bool
    sessions: Section
    ends: Mapping[str, Action]
    filters: Mapping[str, str]


def issue(api: ApiCaller) -> Action:
    """Return the action that issues a key."""
    action = Action(
        label="Issue a key",
        sentence="Creates an API key. Its text is shown once, after it was issued.",
        path="/api-keys",
        fields=(
            Field(name="principal", label="Principal", is_required=True, hint="Person or program that uses the key."),
            Field(
                name="roles", label="Role", kind=FieldKind.CHOICE, value=Role.VIEWER.value, is_list=True,
                choices=tuple(each.value for each in Role), is_required=True,
            ),
            Field(
                name="scopes", label="Datasets", value="*", is_list=True, is_required=True,
                hint="Patterns such as urn:dp:orders:*, separated by spaces; * is every dataset.",
            ),
            Field(name="expires_in", label="Expires in", value="90d", hint="Such as 12h or 90d; empty: until revoked."),
            Field(name="note", label="Note", hint="What the key is for."),
        ),
        cli=(
            "headgate api-key issue {principal} --role {roles} --scope {scopes} --expires-in {expires_in} --note {note}"
        ),
        tone=Tone.PRIMARY,
        done="The key was issued.",
        reveals="text",
    )  # fmt: skip
    return allowed(api, Permission.KEY_MANAGE, action)


def rotate(api: ApiCaller, key: Mapping[str, Any]) -> Action:
    """Return the action that replaces the secret of a key."""
    key_id = key["key_id"]
    action = Action(
        label="Rotate",
        sentence=(
            f"Replaces the secret of the key of {key['principal']}. The new text is shown once. Sessions that the old "
            "text opened end with it."
        ),
        path=f"/api-keys/{segment(key_id)}/rotate",
        fields=(
            Field(name="overlap", label="Old text stays valid for", value="1h", hint="Such as 1h; 0s ends it at once."),
            Field(name="reason", label="Reason", hint="Recorded in the audit log."),
        ),
        cli=f"{command('api-key', 'rotate', key_id)} --overlap {{overlap}} --reason {{reason}}",
        done="The key was rotated.",
        reveals="text",
    )
    return allowed(api, Permission.KEY_MANAGE, action)


def revoke(api: ApiCaller, key: Mapping[str, Any]) -> Action:
    """Return the action that revokes a key."""
    key_id = key["key_id"]
    action = Action(
        label="Revoke",
        sentence=f"Ends the key of {key['principal']} at once and for good, with the sessions that it opened.",
        method="DELETE",
        path=f"/api-keys/{segment(key_id)}",
        fields=(),
        cli=command("api-key", "revoke", key_id),
        tone=Tone.DANGER,
        done="The key is revoked.",
    )
    return allowed(api, Permission.KEY_MANAGE, action)


def end_session(api: ApiCaller, session: Mapping[str, Any]) -> Action:
    """Return the action that ends a session."""
    action = Action(
        label="End",
        sentence=f"Signs {session['principal']} out of the pages. They can sign in again while their key is valid.",
        method="DELETE",
        path=f"/sessions/{segment(session['sign_in_id'])}",
        fields=(),
        cli=command("session", "end", session["sign_in_id"]),
        tone=Tone.DANGER,
        done="The session has ended.",
    )
    return allowed(api, Permission.KEY_MANAGE, action)


def key_state(key: Mapping[str, Any], now_ms: int) -> str:
    """Return the state of a key: ACTIVE, EXPIRING, EXPIRED or REVOKED."""
    if key["revoked_at"]:
        return "REVOKED"
    if not key["expires_at"]:
        return "ACTIVE"
    left_ms = milliseconds(key["expires_at"]) - now_ms
    return "EXPIRED" if left_ms <= 0 else "EXPIRING" if left_ms < EXPIRING_MS else "ACTIVE"


def settings_page(api: ApiCaller, query: Mapping[str, Any]) -> SettingsPage:
    """Return the page. Parts that the reader may not see name the roles that may."""
    server = api.section("GET /settings")
    keys = api.section("GET /api-keys", query={"page_size": KEYS_MAX})
    sessions = api.section("GET /sessions")
    key_rows = [_key(api, each) for each in keys.items()]
    is_every_key = query.get("keys") == _ALL
    found = server.items("settings")
    changed = sum(each["origin"] != SettingOrigin.DEFAULT for each in found)
    valid = sum(bool(each.actions) for each in key_rows)
    return SettingsPage(
        server=server,
        rows=_rows(found, query),
        chips=chips(ADDRESS, query, "show", ((f"Set here {changed}", ""), (f"All {len(found)}", _ALL))),
        keys=keys,
        key_rows=[each for each in key_rows if is_every_key or each.actions],
        key_chips=chips(ADDRESS, query, "keys", ((f"Valid {valid}", ""), (f"All {len(key_rows)}", _ALL))),
        has_more_keys=bool(keys.value and keys.value["next_page_token"]),
        sessions=sessions,
        ends={each["sign_in_id"]: end_session(api, each) for each in sessions.items()},
        filters={name: str(query.get(name, "")) for name in FILTERS},
    )


def _key(api: ApiCaller, key: Mapping[str, Any]) -> KeyRow:
    state = key_state(key, api.now_ms)
    is_valid = state in ("ACTIVE", "EXPIRING")
    return KeyRow(key=key, state=state, actions=(rotate(api, key), revoke(api, key)) if is_valid else ())


def _rows(settings: Sequence[Mapping[str, Any]], query: Mapping[str, Any]) -> list[SettingRow]:
    word = str(query.get("search", "")).lower()
    is_all = query.get("show") == _ALL or word
    return [
        SettingRow(setting=each, value=_text(each["value"]), origin=_ORIGINS[each["origin"]])
        for each in settings
        if (is_all or each["origin"] != SettingOrigin.DEFAULT)
        and (not word or word in f"{each['name']} {each['description']}".lower())
    ]


def _text(value: Any) -> str:  # noqa: ANN401 - any value of a setting
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return ", ".join(f"{name} = {each}" for name, each in value.items())
    return "" if value is None else str(value)


def _page(api: ApiCaller, request: PageRequest) -> Page:
    return Page(
        template="settings.html",
        title="Settings and keys",
        view=settings_page(api, request.query),
        actions=(issue(api),),
        json=twin("/settings"),
        cli=command("settings", "ls"),
        section="settings",
    )


PAGES: Final = (PageRoute("/settings", _page, FILTERS, needs="GET /settings"),)
