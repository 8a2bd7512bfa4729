"""A proxy in front of an AWS emulator that counts the DynamoDB calls which pass through it."""

from __future__ import annotations

import json
import threading
from collections import Counter

from tests.passing_proxy import PassingProxy


class CountingProxy(PassingProxy):
    """Passes requests on. `counts` has the calls so far by operation, table and index."""

    def __init__(self, endpoint: str) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        super().__init__(endpoint)

    def taken(self) -> Counter[str]:
        """Return the counts so far, and begin again."""
        with self._lock:
            taken, self.counts = self.counts, Counter()
        return taken

    def received(self, target: str, body: bytes) -> None:
        service, _, operation = target.partition(".")
        if not service.startswith("DynamoDB"):
            return
        given = json.loads(body or b"{}")
        about = given.get("TableName") or " ".join(given.get("RequestItems", {})) or ""
        with self._lock:
            self.counts[" ".join(filter(None, (operation, about, given.get("IndexName"))))] += 1
