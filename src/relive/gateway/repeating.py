"""What one call has to do with the cache: whether it is answered from it, and whether its own answer goes into it."""

from relive.gateway.access import Caller, credentials
from relive.gateway.cache import HEADER, AnswerCache, CachedAnswer, key_of
from relive.gateway.client import Client, Taken
from relive.gateway.request import CallRequest


class Repeating:
    """One call beside the cache.

    Args:
        cache: The answers that are given again.
        client: Who asked.
        caller: What the client may do.
    """

    def __init__(self, cache: AnswerCache, client: Client, caller: Caller) -> None:
        self._cache = cache
        self._client = client
        self._caller = caller
        self._key = b""

    def find(self, request: CallRequest) -> CachedAnswer | None:
        """What the same request was answered before; else what the client gets is taken down, where it may be kept."""
        if not (self._client.method == "POST" and request.understood):
            return None
        reads, writes = self._cache.allowed(self._client.headers.get(HEADER))
        if not (reads or writes):
            return None
        shown = credentials(self._client.headers) if self._caller.own_credentials else None
        self._key = key_of(request, self._caller.name, shown)
        answer = self._cache.get(self._key) if reads else None
        if answer is None and writes:
            self._client.taken = Taken()
        return answer

    def keep(self, uid: bytes) -> None:
        """Keeps what the client got, if it was taken down whole; the call came to its end, and `uid` is its record."""
        taken = self._client.taken
        if taken is None or taken.status != 200 or not taken.whole:
            return
        if taken.header(b"content-encoding") in (None, "identity"):
            kind = taken.header(b"content-type") or "application/json"
            self._cache.put(self._key, b"".join(taken.pieces), kind, uid)
