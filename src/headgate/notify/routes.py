"""Routes: which channels an event goes to. Pure; what it decides by is passed in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct

from headgate.notify.enums import DefaultRoute, Severity
from headgate.notify.notices import Audience, Notice, is_like

# One transaction makes all deliveries of an alert.
CHANNELS_MAX: Final = 20


class Route(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sends what fits all that is given to some channels. Patterns have `*` and `?`; one of several must fit.

    Routes are asked in their order. The first that fits is the last, unless it says `goes_on`. One that names events
    is also asked for those that are not told by default.
    """

    channels: tuple[str, ...]
    name: str = ""
    severity_min: Severity = Severity.INFO
    events: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    goes_on: bool = False


def fits(route: Route, notice: Notice, audience: Audience) -> bool:
    """Whether a route is for this notice."""
    if notice.severity.rank < route.severity_min.rank:
        return False
    if not route.events and not notice.alerts:
        return False
    return (
        _any_like(notice.event, route.events)
        and _any_like(notice.pipeline_id, route.pipelines)
        and _any_like(audience.owner, route.owners)
        and all(
            name in audience.labels and is_like(audience.labels[name], pattern)
            for name, pattern in route.labels.items()
        )
    )


def channels_for(
    notice: Notice,
    audience: Audience,
    routes: Sequence[Route],
    defaults: Mapping[DefaultRoute, Sequence[str]],
    known: Collection[str],
) -> tuple[str, ...]:
    """Return the channels that a notice goes to, each once: by the routes that fit, or by default.

    The channels that the pipeline's own definition names are always among them. A name that no channel has is passed
    over: a definition is not allowed to keep an alert from the others.
    """
    wanted: list[str] = []
    is_routed = False
    for route in routes:
        if fits(route, notice, audience):
            is_routed = True
            wanted += route.channels
            if not route.goes_on:
                break
    if not is_routed and notice.alerts:
        wanted += defaults.get(notice.route, ())
    if notice.alerts:
        wanted += audience.channels
    told = [name for name in dict.fromkeys(wanted) if name in known and name not in notice.avoid]
    if not told and notice.avoid:
        # It is about the channels it would have gone to: whoever else can be told is.
        told = [name for name in known if name not in notice.avoid]
    return tuple(told[:CHANNELS_MAX])


def remaining(failed: str, tried: Collection[str], failing: Collection[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return where an alert goes whose channel fails, if no other was asked to tell it: to all that work.

    Empty if another channel, one that is not known to fail, has it already.
    """
    if any(channel != failed and channel not in failing for channel in tried):
        return ()
    return tuple(name for name in known if name != failed and name not in failing)[:CHANNELS_MAX]


def _any_like(text: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(is_like(text, pattern) for pattern in patterns)
