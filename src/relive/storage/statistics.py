"""Figures of a store."""

from pathlib import Path

import apsw

from relive.storage import feedback as feedback_rule
from relive.storage.connection import fetch
from relive.storage.protocol import StoreStats
from relive.storage.record import OUTCOMES

WAL_ALARM = 256 << 20
"""Bytes of write-ahead log from which on `StoreStats.wal_alarm` is true."""


def collect(
    connection: apsw.Connection, path: Path, schema_version: int, *, pending: int, connections: int
) -> StoreStats:
    """The figures as one connection sees them inside a transaction."""
    rows, size, evicted = connection.execute("SELECT rows, bytes, evicted FROM total").get
    rewards, low, mean, high, cost, costs = connection.execute(
        "SELECT count(reward), min(reward), avg(reward), max(reward), sum(cost), count(cost) FROM experience"
    ).get
    outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
    for number, count in fetch(connection, "SELECT outcome, count(*) FROM experience GROUP BY outcome"):
        outcomes[OUTCOMES[number]] = count
    wal = _size(Path(f"{path}-wal"))
    return StoreStats(
        path=str(path),
        schema_version=schema_version,
        experiences=rows,
        episodes=connection.execute("SELECT count(DISTINCT episode_id) FROM experience").get,
        payload_bytes=size,
        file_bytes=_size(path),
        wal_bytes=wal,
        wal_alarm=wal > WAL_ALARM,
        evicted=evicted,
        feedback=connection.execute("SELECT count(*) FROM feedback").get,
        rewards=rewards,
        reward_min=low,
        reward_mean=mean,
        reward_max=high,
        outcomes=outcomes,
        agents=dict(fetch(connection, "SELECT agent, count(*) FROM experience GROUP BY agent")),
        cost=cost,
        unknown_costs=rows - costs,
        pending=pending,
        connections=connections,
        feedback_waiting=feedback_rule.waiting(connection),
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
