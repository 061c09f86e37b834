"""What held when a call was made (settings, prompt templates, playbook, prices), kept once each under its hash."""

import hashlib
import time
from typing import Any

import msgspec

from relive.gateway.ledger import Ledger

_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=str)


def snapshot_hash(parts: dict[str, Any]) -> tuple[str, str]:
    """The hash (24 hexadecimal digits of SHA-256) and the canonical JSON text of a snapshot."""
    text = _ENCODER.encode(parts).decode()
    return hashlib.sha256(text.encode()).hexdigest()[:24], text


class Snapshots:
    """Keeps snapshots.

    Args:
        ledger: Where they are kept.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: set[str] = set()

    def keep(self, parts: dict[str, Any]) -> str:
        """Keeps what holds now, unless it is kept already; gives its hash.

        Args:
            parts: JSON values by name; nothing secret.
        """
        name, text = snapshot_hash(parts)
        if name not in self._kept:
            self._ledger.transaction(
                lambda c: c.execute(
                    "INSERT OR IGNORE INTO snapshot VALUES (?, ?, ?)", (name, time.time(), text)
                ).fetchall()
            )
            self._kept.add(name)
        return name

    def find(self, name: str) -> Any:
        """The snapshot with this hash; ``None``: there is none."""
        rows = self._ledger.rows("SELECT body FROM snapshot WHERE hash = ?", (name,))
        return msgspec.json.decode(rows[0][0]) if rows else None
