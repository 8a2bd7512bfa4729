"""Alert quotas: a limit of alerts per team and hour, shared by all processes that send alerts."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import ConflictError, InvalidPayloadError, StoreBusyError
from headgate.health.model.timestamps import instant
from headgate.ids import check_new_path
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.schema import Key
from headgate.store.port import Store

PER_HOUR: Final = 10
TEAM_BYTES_MAX: Final = 256
ATTEMPTS_MAX: Final = 32
_HOUR_MS: Final = 3_600_000
_KEPT_SECONDS: Final = 86_400


class AlertQuota(Struct, frozen=True, kw_only=True):
    """The quota of a team in an hour. `is_granted`: whether the requested alerts may be sent."""

    team: str
    hour: str
    is_granted: bool
    alert_count: int
    per_hour: int
    resets_at: str


class AlertQuotas:
    """Counts alerts by team and UTC hour. Conditional writes keep concurrent processes within the limit."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def show(self, team: str, *, per_hour: int = PER_HOUR) -> AlertQuota:
        """Return how much of this hour's quota is used. Raises `InvalidPayloadError` for an invalid team name."""
        hour = self._hour()
        row = self._store.get(CONTROL, _key(team, hour), consistent=True)
        used = 0 if row is None else int(row["alert_count"])
        return _quota(team, hour, used, per_hour, is_granted=used < per_hour)

    def acquire(self, team: str, *, alerts: int = 1, per_hour: int = PER_HOUR) -> AlertQuota:
        """Take alerts from this hour's quota, all or none; `is_granted` is the answer.

        Raises `InvalidPayloadError` or `InvalidIdError` for an invalid team name, and `StoreBusyError` after too many
        conflicts.
        """
        for _ in range(ATTEMPTS_MAX):
            hour = self._hour()
            key = _key(team, hour)
            check_new_path("team", team, TEAM_BYTES_MAX)
            row = self._store.get(CONTROL, key, consistent=True)
            used, version = (0, 0) if row is None else (int(row["alert_count"]), int(row["version"]))
            if used + alerts > per_hour:
                return _quota(team, hour, used, per_hour, is_granted=False)
            item = {
                **CONTROL.key_attributes(key),
                "alert_count": used + alerts,
                "version": version + 1,
                "ttl": int(self._clock.seconds()) + _KEPT_SECONDS,
            }
            try:
                self._store.put(CONTROL, item, condition=absent() if row is None else version_is(version))
            except ConflictError:
                continue
            return _quota(team, hour, used + alerts, per_hour, is_granted=True)
        raise StoreBusyError(f"alert quota of {team}: {ATTEMPTS_MAX} conflicts with other writers; try again")

    def _hour(self) -> int:
        return int(self._clock.seconds() * 1000) // _HOUR_MS


def _key(team: str, hour: int) -> Key:
    if not team or len(team.encode(errors="surrogatepass")) > TEAM_BYTES_MAX:
        raise InvalidPayloadError(f"team {team[:40]!r}: give 1 to {TEAM_BYTES_MAX} bytes of text")
    return Key(f"QUOTA#ALERTS#{team}", _bucket(hour))


def _bucket(hour: int) -> str:
    moment = instant(hour * _HOUR_MS)
    return f"{moment[:10]}-{moment[11:13]}"


def _quota(team: str, hour: int, used: int, per_hour: int, *, is_granted: bool) -> AlertQuota:
    return AlertQuota(
        team=team,
        hour=_bucket(hour),
        is_granted=is_granted,
        alert_count=used,
        per_hour=per_hour,
        resets_at=instant((hour + 1) * _HOUR_MS),
    )
