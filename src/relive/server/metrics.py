"""Counts in the text format of Prometheus."""

from collections.abc import Iterator

from relive.gateway.cache import CacheStats
from relive.server.build import Parts


def exposition(parts: Parts) -> str:
    """All counts as Prometheus reads them."""
    return "\n".join(_lines(parts)) + "\n"


def _lines(parts: Parts) -> Iterator[str]:
    gateway, recorder = parts.gateway, parts.gateway.recorder
    yield from _family("calls_total", "counter", "Calls by how they ended.")
    for status, count in sorted(gateway.stats.calls.items()):
        yield f'relive_calls_total{{status="{status}"}} {count}'
    counters = (
        ("records_stored_total", "Records that the store acknowledged.", recorder.stats.stored),
        ("records_pending_total", "Answers that went out before their record was kept.", recorder.stats.pending),
        ("records_spooled_total", "Records and feedback that went through the spool.", recorder.stats.spooled),
        ("records_lost_total", "Records that nothing could keep.", recorder.stats.lost),
        ("records_refused_total", "Records that the store cannot hold.", recorder.stats.refused),
        ("journal_failures_total", "Writes to the journal that failed.", gateway.journal.failures),
        ("background_left_out_total", "Work beside calls that was left out.", gateway.stats.left_out),
    )
    for name, text, value in counters:
        yield from _family(name, "counter", text)
        yield f"relive_{name} {value}"
    cache = gateway.cache.stats if gateway.cache is not None else CacheStats()
    for name, text, value in (
        ("cache_hits_total", "Answers given again from the cache.", cache.hits),
        ("cache_misses_total", "Requests that the cache had no answer to.", cache.misses),
    ):
        yield from _family(name, "counter", text)
        yield f"relive_{name} {value}"
    gauges = (
        ("calls_in_flight", "Calls under way.", gateway.stats.in_flight),
        ("records_waiting", "Records that wait for the store.", recorder.waiting),
        ("store_stuck", "1 while the store does not take writes.", int(recorder.stuck)),
        ("experiences", "Experiences in the store.", len(parts.memory.storage)),
    )
    for name, text, value in gauges:
        yield from _family(name, "gauge", text)
        yield f"relive_{name} {value}"
    yield from _family("route_cooling", "gauge", "1 while a route stands back after failures.")
    for name in gateway.routes.models:
        yield f'relive_route_cooling{{route="{_label(name)}"}} {int(gateway.cooldowns.cooling(name))}'


def _family(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP relive_{name} {text}"
    yield f"# TYPE relive_{name} {kind}"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
