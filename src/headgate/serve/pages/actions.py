"""Actions: buttons that call the API. A dialog asks for the reason and other fields, and shows the same as a command.

The browser sends the request to the API itself, so that authorisation, audit and validation are those of the API.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from headgate.auth.roles import Permission, roles_with
from headgate.serve.http.operations import PREFIX
from headgate.serve.pages.api_calls import ApiCaller


class Tone(enum.StrEnum):
    """How much a button stands out: the expected next step, one of several, or one that ends or removes something."""

    PRIMARY = "primary"
    PLAIN = "plain"
    DANGER = "danger"


class FieldKind(enum.StrEnum):
    """The input of a field in the dialog."""

    TEXT = "text"
    LONG_TEXT = "textarea"
    NUMBER = "number"
    CHOICE = "select"
    # Sent as a JSON value.
    JSON = "json"
    FLAG = "checkbox"


class Field(Struct, frozen=True, kw_only=True):
    """A value that the dialog asks for. `name` is its field in the body; a dot leads into an object."""

    name: str
    label: str
    kind: FieldKind = FieldKind.TEXT
    value: str = ""
    choices: tuple[str, ...] = ()
    is_required: bool = False
    hint: str = ""
    # Sent as a list: a text is split at commas and spaces.
    is_list: bool = False


# The reason of an action, which the audit log keeps.
REASON = Field(name="reason", label="Reason", kind=FieldKind.TEXT, is_required=True, hint="Recorded in the audit log.")


class Action(Struct, frozen=True, kw_only=True):
    """One button. `path` is below the API's prefix; `cli` may hold `{name}` for a field, which the dialog fills in.

    An option of an empty field, `--name {name}`, is left out, unless the field is required; that of a list is repeated.
    """

    label: str
    # What happens, in one sentence: the text of the dialog.
    sentence: str
    path: str
    cli: str
    method: str = "POST"
    body: Mapping[str, Any] = msgspec.field(default_factory=dict)
    fields: tuple[Field, ...] = (REASON,)
    tone: Tone = Tone.PLAIN
    # The version that the page shows, sent as If-Match: a change made meanwhile is a conflict and not overwritten.
    if_match: str = ""
    # Shown when it is done.
    done: str = "Done."
    # A field of the answer that the dialog shows once, with a copy button, such as the text of a new key. It is kept in
    # the dialog only, until that is closed.
    reveals: str = ""
    # Why the caller may not do this; the button is shown, but cannot be pressed.
    denied: str = ""

    @property
    def json(self) -> str:
        """The action for the page's script."""
        return msgspec.json.encode(
            {
                "method": self.method,
                "path": PREFIX + self.path,
                "body": self.body,
                "fields": self.fields,
                "title": self.label,
                "sentence": self.sentence,
                "cli": self.cli,
                "tone": self.tone,
                "ifMatch": self.if_match,
                "done": self.done,
                "reveals": self.reveals,
            }
        ).decode()


def allowed(api: ApiCaller, permission: Permission, action: Action, dataset_urn: str | None = None) -> Action:
    """Return the action, disabled with the reason if the caller lacks the permission."""
    if api.may(permission, dataset_urn):
        return action
    needed = ", ".join(roles_with(permission))
    return msgspec.structs.replace(action, denied=f"Needs one of the roles {needed}.")
