"""Statistics of several lanes as one engine's (they feed /metrics)."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats


def merge_stats(lanes: Sequence[SchedulerStats | None]) -> SchedulerStats | None:
    """Counts are summed, KV use is the mean (lanes have pools of one size), events are concatenated.
    None where statistics are off."""
    present = [stats for stats in lanes if stats is not None]
    if not present:
        return None
    if len(present) == 1:
        return present[0]
    prefix = PrefixCacheStats()
    for stats in present:
        one = stats.prefix_cache_stats
        prefix.reset |= one.reset
        prefix.requests += one.requests
        prefix.queries += one.queries
        prefix.hits += one.hits
        prefix.preempted_requests += one.preempted_requests
        prefix.preempted_queries += one.preempted_queries
        prefix.preempted_hits += one.preempted_hits
    # What is left is of features that have no lanes, and differs from release to release.
    return dataclasses.replace(
        present[0],
        num_running_reqs=sum(s.num_running_reqs for s in present),
        num_waiting_reqs=sum(s.num_waiting_reqs for s in present),
        num_skipped_waiting_reqs=sum(s.num_skipped_waiting_reqs for s in present),
        kv_cache_usage=sum(s.kv_cache_usage for s in present) / len(present),
        prefix_cache_stats=prefix,
        kv_cache_eviction_events=[event for s in present for event in s.kv_cache_eviction_events],
    )
