"""Volumes of datasets by the hour, as GraphQL shows them."""

from __future__ import annotations

import strawberry

from headgate.health.model.volume_counts import VolumePoint
from headgate.serve.graphql_words import Moment


@strawberry.type(name="VolumePoint")
class VolumePointType:
    """What was counted in an hour. `eventCount` null: nobody has counted, which is not the same as nothing.

    It is exact up to 2^53. `windowCount` tells how much of the hour was counted; `isOver` is false for the hour that
    still goes on.
    """

    hour: Moment
    event_count: float | None
    window_count: int
    is_over: bool

    @classmethod
    def of(cls, point: VolumePoint) -> VolumePointType:
        return cls(
            hour=Moment(point.hour),
            event_count=point.event_count,
            window_count=point.window_count,
            is_over=point.is_over,
        )
