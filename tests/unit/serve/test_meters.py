"""What the server shows of its cache."""

from __future__ import annotations

from headgate.clock import VirtualClock
from headgate.serve.metrics import CacheCollector
from headgate.store.cache.keys import dataset_config
from headgate.store.cache.read_through import Cache, Loaded


def test_cache_collector__three_hits_after_a_miss__hit_rate_and_counts_by_kind() -> None:
    cache = Cache(clock=VirtualClock())
    for _ in range(4):
        cache.get(dataset_config("urn:dp:orders"), lambda: Loaded("config", 1), str)

    samples = {
        (sample.name, sample.labels["kind"]): sample.value
        for metric in CacheCollector(cache.stats).collect()
        for sample in metric.samples
    }

    assert samples["headgate_cache_hit_rate", "dc"] == 0.75
    assert samples["headgate_cache_hits_l1_total", "dc"] == 3
    assert samples["headgate_cache_loads_total", "dc"] == 1
    assert samples["headgate_cache_hit_rate", "ss"] == 0
    cache.close()
