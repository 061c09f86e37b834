"""How much a store may hold: kept in the store itself, so that they hold whoever appends.

The owner of the sampling index sets the limits when it opens the store. Where it appends in the same process, it says
what leaves, by its own rule. Where another process appends, the oldest leave; the owner follows.
"""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import apsw
import msgspec

from relive.storage.connection import fetch
from relive.storage.damage import damage_to

if TYPE_CHECKING:
    from relive.storage.transaction import Transaction

SETTING = "limits"
"""Name of the setting that holds them, as JSON."""

_TOGETHER = 1000  # experiences looked at together


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a store may hold.

    Attributes:
        capacity: Most experiences; ``None``: no limit, so for all of them.
        max_bytes: Most bytes of payloads and tokens, as stored.
        max_age: Most microseconds since an experience was stored.
    """

    capacity: int | None = None
    max_bytes: int | None = None
    max_age: int | None = None

    def exceeded(self, transaction: "Transaction") -> bool:
        """Whether something has to leave."""
        if self.capacity is not None and transaction.rows > self.capacity:
            return True
        if self.max_bytes is not None and transaction.payload_bytes > self.max_bytes and transaction.rows:
            return True
        oldest = None if self.max_age is None else transaction.oldest()
        return oldest is not None and oldest < time.time_ns() // 1000 - (self.max_age or 0)


UNLIMITED = Limits()


def decoded(text: str | None) -> Limits:
    """The limits of the setting's text; ``None``: it was never set."""
    if text is None:
        return UNLIMITED
    with damage_to("The setting of the store's limits"):
        return msgspec.json.decode(text, type=Limits)


def save(connection: apsw.Connection, limits: Limits) -> None:
    """Sets the limits for whoever writes to the store; must run inside a write transaction."""
    text = msgspec.json.encode(limits).decode()
    connection.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (SETTING, text))


def remove_oldest(transaction: "Transaction") -> None:
    """Removes the oldest until the store's limits hold."""
    limits = transaction.limits
    if limits.max_age is not None:
        transaction.evict(transaction.expired(time.time_ns() // 1000 - limits.max_age))
    while limits.exceeded(transaction):
        surplus = _Surplus(
            0 if limits.capacity is None else transaction.rows - limits.capacity,
            0 if limits.max_bytes is None else transaction.payload_bytes - limits.max_bytes,
        )
        oldest = fetch(transaction.connection, "SELECT id, bytes FROM experience ORDER BY id LIMIT ?", (_TOGETHER,))
        if not transaction.evict(_first(oldest, surplus)):
            break  # the counters are damaged: `relive check` says so


class _Surplus(NamedTuple):
    rows: int
    bytes: int


def _first(oldest: Iterable[tuple[int, int]], surplus: _Surplus) -> list[int]:
    """The ids of as many as have to leave."""
    chosen: list[int] = []
    freed = 0
    for number, size in oldest:
        if len(chosen) >= surplus.rows and freed >= surplus.bytes:
            break
        chosen.append(number)
        freed += size
    return chosen
