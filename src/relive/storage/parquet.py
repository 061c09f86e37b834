"""Experiences as a Parquet file, for pandas, DuckDB, Polars and their like; needs the extra ``parquet`` (pyarrow).

One row an experience, the columns as in `SCHEMA_COLUMNS`. What JSON holds (the payload, feedback) is JSON text, as it
was stored; an unknown value is null. It is a way out for analysis: `relive import` reads JSONL.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from relive.experience import SCHEMA_VERSION
from relive.storage.exporter import Exported, ExportError, Progress, fields, replacing, selected
from relive.storage.reading import Query
from relive.storage.sqlite import SqliteStorage

if TYPE_CHECKING:
    import pyarrow

SCHEMA_COLUMNS: dict[str, str] = {
    "id": "int64", "uid": "string", "state": "string", "action": "string", "next_state": "string", "info": "string",
    "reward": "double", "terminated": "bool", "truncated": "bool", "outcome": "string", "agent": "string",
    "episode_id": "string", "step": "int64", "parent_uid": "string", "group_id": "string", "tags": "list<string>",
    "policy": "string", "policy_version": "int64", "input_tokens": "int64", "cached_tokens": "int64",
    "cache_write_tokens": "int64", "output_tokens": "int64", "reasoning_tokens": "int64", "cost_nano_usd": "int64",
    "latency_ms": "double", "error": "string", "created_at": "timestamp", "priority": "double",
    "token_ids": "list<int32>", "token_mask": "list<uint8>", "token_logprobs": "list<float>",
    "token_versions": "list<int32>", "temperature": "double", "top_p": "double", "tokenizer": "string",
    "feedback": "string",
}  # fmt: skip
"""Name and type of each column; ``timestamp`` is in microseconds, UTC."""

_GROUP_ROWS = 4_096  # rows in memory at once
_GROUP_BYTES = 64 << 20
_TOKENS = {
    "token_ids": "token_ids",
    "token_mask": "mask",
    "token_logprobs": "logprobs",
    "token_versions": "versions",
    "temperature": "temperature",
    "top_p": "top_p",
    "tokenizer": "tokenizer",
}


class _Payload(msgspec.Struct):
    state: msgspec.Raw = msgspec.Raw(b"null")
    action: msgspec.Raw = msgspec.Raw(b"null")
    next_state: msgspec.Raw = msgspec.Raw(b"null")
    info: msgspec.Raw = msgspec.Raw(b"null")


def export_parquet(
    storage: SqliteStorage,
    path: Path,
    query: Query | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> int:
    """Writes the experiences that a query finds as one Parquet file, in the order of ids; returns how many.

    Args:
        storage: The store; it may be written to meanwhile.
        path: The file; it is there whole once this returns, or not at all.
        query: Which experiences; ``None``: all.
        force: Replace a file that is there.
        progress: Called after every page.

    Raises:
        ExportError: pyarrow is not installed, or `path` cannot be written to.
        OSError: the disk is full.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ExportError('Parquet needs pyarrow: pip install "relive[parquet]". JSONL needs nothing.') from error
    types = _types(pyarrow)
    schema = pyarrow.schema(
        [(name, types[kind]) for name, kind in SCHEMA_COLUMNS.items()],
        metadata={"relive.schema_version": str(SCHEMA_VERSION)},
    )
    count = 0
    rows: list[dict[str, Any]] = []
    size = 0
    with (
        replacing(path, force=force) as file,
        pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for exported in selected(storage, query, progress=progress):
            row = _row(exported)
            rows.append(row)
            size += len(row["state"]) + len(row["action"])
            count += 1
            if len(rows) == _GROUP_ROWS or size >= _GROUP_BYTES:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                rows, size = [], 0
        if rows or not count:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
    return count


def _types(arrow: Any) -> dict[str, pyarrow.DataType]:
    simple = {name: getattr(arrow, name)() for name in ("int32", "int64", "uint8", "string")}
    simple |= {"double": arrow.float64(), "float": arrow.float32(), "bool": arrow.bool_()}
    lists = {f"list<{name}>": arrow.list_(kind) for name, kind in simple.items()}
    return {**simple, **lists, "timestamp": arrow.timestamp("us", "UTC")}


def _row(exported: Exported) -> dict[str, Any]:
    stored = exported.stored
    said = fields(exported)
    payload = msgspec.json.decode(stored.json(), type=_Payload)
    row: dict[str, Any] = {**said, **(said.get("usage") or {})}
    row |= {
        "id": stored.id,
        "uid": exported.uid.hex(),
        "state": bytes(payload.state).decode(),
        "action": bytes(payload.action).decode(),
        "next_state": _text(payload.next_state),
        "info": _text(payload.info),
        "created_at": stored.created_at,
        "cost_nano_usd": said.get("cost"),
        "feedback": msgspec.json.encode(said["feedback"]).decode() if "feedback" in said else None,
    }
    tokens = stored.outline().tokens
    if tokens is not None:
        row |= {column: getattr(tokens, field) for column, field in _TOKENS.items()}
    return row


def _text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw).decode()
    return None if text == "null" else text
