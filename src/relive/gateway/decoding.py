"""Reading a compressed answer while its own bytes go on to the client unchanged."""

import importlib
import zlib
from collections.abc import Callable
from typing import Any, cast

import zstandard

READABLE = ("gzip", "deflate", "zstd", "identity")
"""Encodings that can be read without further packages; the gateway asks upstreams for no other."""


class BodyDecoder:
    """Unpacks a body that arrives in pieces.

    Args:
        encoding: The answer's ``content-encoding``.

    Attributes:
        readable: Whether what comes out is text; False: the encoding is unknown, or the data turned out to be broken.
    """

    def __init__(self, encoding: str | None) -> None:
        name = (encoding or "identity").strip().lower()
        self._decompress: Callable[[bytes], bytes] | None = None
        self._inflate_raw = False
        self.readable = True
        self.plain = name in ("", "identity")
        if name in ("gzip", "x-gzip"):
            self._decompress = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress
        elif name == "deflate":
            self._decompress = zlib.decompressobj().decompress
            self._inflate_raw = True
        elif name == "zstd":
            self._decompress = zstandard.ZstdDecompressor().decompressobj().decompress
        elif name == "br":
            self._decompress = _brotli()
            self.readable = self._decompress is not None
        elif not self.plain:
            self.readable = False

    def decode(self, piece: bytes) -> bytes:
        """The text in the next piece; empty where it cannot be read."""
        if self.plain or not self.readable or not piece:
            return piece if self.readable else b""
        assert self._decompress is not None  # noqa: S101 - set for every readable encoding
        raw_first, self._inflate_raw = self._inflate_raw, False
        try:
            return self._decompress(piece)
        except zlib.error:
            if raw_first:  # half the world sends deflate without the header that the standard asks for
                self._decompress = zlib.decompressobj(-zlib.MAX_WBITS).decompress
                return self.decode(piece)
            self.readable = False
        except Exception:  # noqa: BLE001 - zstandard and brotli have errors of their own; the client gets its bytes anyway
            self.readable = False
        return b""


def _brotli() -> Callable[[bytes], bytes] | None:
    """Brotli's decompressor, if the package is installed."""
    try:
        brotli: Any = importlib.import_module("brotli")
    except ImportError:
        return None
    return cast("Callable[[bytes], bytes]", brotli.Decompressor().process)
