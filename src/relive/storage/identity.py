"""How an experience is known outside its store: 16 bytes that say which it is, wherever it is taken.

An imported experience keeps the identity it came with. One that was recorded here has none written down: its identity
is the store's own id (its first 8 bytes) and its number there, so that a store knows its own when they come back.
"""

import apsw
import msgspec

LENGTH = 16
_HALF = LENGTH // 2


def store_prefix(connection: apsw.Connection) -> bytes:
    """The first half of the identities of what was recorded in this store."""
    text = connection.execute("SELECT value FROM setting WHERE name = 'store_id'").get
    return bytes.fromhex(msgspec.json.decode(text, type=str))[:_HALF]


def of_own(prefix: bytes, number: int) -> bytes:
    """The identity of the experience with this id that was recorded in the store with this prefix."""
    return prefix + number.to_bytes(_HALF, "big")


def own_id(prefix: bytes, uid: bytes) -> int | None:
    """The id that an identity means in the store with this prefix; ``None``: it was not recorded there."""
    number = int.from_bytes(uid[_HALF:], "big")
    return number if uid[:_HALF] == prefix and number < 2**63 else None


def find(connection: apsw.Connection, prefix: bytes, uid: bytes) -> int | None:
    """The id of the stored experience with this identity; ``None``: it is not there."""
    number = own_id(prefix, uid)
    if number is not None:
        found = connection.execute("SELECT id FROM experience WHERE id = ? AND uid IS NULL", (number,)).get
        if found is not None:
            return int(found)
    found = connection.execute("SELECT id FROM experience WHERE uid = ?", (uid,)).get
    return None if found is None else int(found)
