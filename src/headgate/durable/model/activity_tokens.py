"""Activity tokens: complete activities from outside; signed, and valid for one attempt."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model.records import Activity
from headgate.errors import SignatureError
from headgate.store.keyring import Keyring, Purpose


class _Claim(Struct, frozen=True, array_like=True):
    activity_id: str
    token: str


def sign_token(keyring: Keyring, activity: Activity) -> str:
    """Return the token of a claim."""
    return keyring.sign(Purpose.TOKEN, msgspec.json.encode(_Claim(activity.activity_id, activity.token)))


def read_token(keyring: Keyring, token: str) -> tuple[str, str]:
    """Return the activity id and the claim's token. Raises `SignatureError`."""
    try:
        claim = typed_decode.from_json(keyring.verify(Purpose.TOKEN, token), _Claim)
    except msgspec.MsgspecError as exc:
        raise SignatureError("the token is not one of an activity; use what hg.activity().token gave") from exc
    return claim.activity_id, claim.token
