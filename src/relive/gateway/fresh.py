"""Random ids, drawn from the operating system a few hundred at a time: asking it for each would be slow."""

import os

_BYTES = 16
_AT_ONCE = 256

_pool: list[bytes] = []


def fresh_id() -> bytes:
    """Sixteen random bytes that no other process will draw."""
    if not _pool:
        drawn = os.urandom(_BYTES * _AT_ONCE)
        _pool.extend(drawn[start : start + _BYTES] for start in range(0, len(drawn), _BYTES))
    return _pool.pop()


os.register_at_fork(after_in_child=_pool.clear)
