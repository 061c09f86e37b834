"""A memory in another process: what `relive.open("http://…")` gives, over the admin API of `relive serve`."""

from relive.client.errors import AccessRefusedError, RemoteError, UnreachableError
from relive.client.remote import RemoteMemory

__all__ = ["AccessRefusedError", "RemoteError", "RemoteMemory", "UnreachableError"]
