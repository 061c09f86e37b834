"""The APIs that are understood: for each how its requests and answers are read. Bytes in, values out, no network."""

from relive.gateway.dialects.dialect import DIALECTS, RAW, Dialect, meant_path

__all__ = ["DIALECTS", "RAW", "Dialect", "meant_path"]
