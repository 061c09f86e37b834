"""TensorZero's tables, as `pg_dump --data-only --schema=tensorzero` writes them: inferences, their models, feedback.

A dump is one file that needs neither a server nor a driver to be read. Its rows are sorted into a temporary database
first, since what belongs to one inference lies in several tables. Each inference becomes one experience whose identity
is the inference's id, so importing a newer dump adds what is new. Both layouts are read: payloads in the tables of
inferences (before 2026.2) and beside them.

State and action become chat messages; blocks that chat messages have no place for stay as they are. A function is the
agent, a variant a tag. Metrics are feedback under their own names; a comment or demonstration likewise.
"""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import apsw
import msgspec

from relive.errors import InvalidExperienceError
from relive.experience import Feedback
from relive.storage.formats.found import Found, Ignored, Item, Problem, transition, with_payload
from relive.storage.formats.jsontext import BadRecordError
from relive.storage.formats.source import Source

NAME = "tensorzero"
EXAMPLE = "pg_dump --data-only --schema=tensorzero DATABASE"

_COPY = re.compile(
    rb'COPY "?(?:tensorzero"?\."?)?([a-z_]+?)(?:_\d{4}_\d\d(?:_\d\d)?|_default|_archive)*"? \((.*)\) FROM'
)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_INFERENCES = {"chat_inferences": "chat", "json_inferences": "json"}
_BESIDE = {
    "chat_inference_data": ("data", "id"),
    "json_inference_data": ("data", "id"),
    "model_inferences": ("model", "inference_id"),
    "boolean_metric_feedback": ("feedback", "target_id"),
    "float_metric_feedback": ("feedback", "target_id"),
    "comment_feedback": ("feedback", "target_id"),
    "demonstration_feedback": ("feedback", "inference_id"),
}
_SOURCE = "tensorzero"

Row = dict[str, str | None]


def matches(record: dict[str, Any]) -> bool:  # noqa: ARG001 - every format has one
    """A dump holds no JSON records, so none looks like one of it: it has to be named."""
    return False


def read(source: Source) -> Iterator[Item]:
    """The experiences of a dump."""
    with closing(apsw.Connection("")) as rows:  # a temporary file, removed at its end
        rows.execute("CREATE TABLE inference(id TEXT PRIMARY KEY, episode TEXT, line INTEGER, kind TEXT, body TEXT)")
        rows.execute("CREATE TABLE beside(kind TEXT, key TEXT, sort TEXT, body TEXT)")
        count = 0
        with rows:
            for item in _sort(source, rows):
                if isinstance(item, int):
                    count += item
                else:
                    yield item
        if not count:
            yield Problem(0, "it holds no rows of TensorZero's inferences; make it with: " + EXAMPLE)
            return
        rows.execute("CREATE INDEX by_key ON beside(key, kind, sort)")
        yield from _experiences(source, rows)


def _sort(source: Source, rows: apsw.Connection) -> Iterator[Item | int]:
    """Puts the dump's rows into tables; gives 1 for each inference, and what is left out."""
    table = ""
    columns: list[str] = []
    left_out: dict[str, bool] = {}
    for chunk in source.chunks():
        line = (chunk.data or b"").rstrip(b"\r\n")
        if not columns:
            found = _COPY.match(line)
            if found is not None:
                table = found[1].decode()
                columns = [name.strip().strip('"') for name in found[2].decode(errors="replace").split(",")]
            continue
        if line == b"\\.":
            columns = []
            continue
        known = table in _INFERENCES or table in _BESIDE
        if not known:
            left_out.setdefault(table, True)
            continue
        values = line.split(b"\t")
        if chunk.data is None or len(values) != len(columns):
            yield Problem(chunk.line, chunk.problem or f"a row of {table} has {len(values)} of {len(columns)} columns")
            continue
        row: Row = dict(zip(columns, map(_text, values), strict=True))
        body = json.dumps(row)
        if table in _INFERENCES:
            rows.execute(
                "INSERT OR IGNORE INTO inference VALUES (?, ?, ?, ?, ?)",
                (row.get("id"), row.get("episode_id"), chunk.line, _INFERENCES[table], body),
            )
            yield 1
            continue
        kind, key = _BESIDE[table]
        rows.execute("INSERT INTO beside VALUES (?, ?, ?, ?)", (kind, row.get(key), row.get("id"), body))
    for name in sorted(left_out):
        yield Ignored(f"table {name}")


def _experiences(source: Source, rows: apsw.Connection) -> Iterator[Item]:
    """The experiences, episode by episode; ids are in the order of time."""
    episode, step = None, 0
    for id_, episode_id, line, kind, body in rows.execute(
        "SELECT id, episode, line, kind, body FROM inference ORDER BY episode, id"
    ):
        first = episode_id != episode
        episode, step = episode_id, 0 if first else step + 1
        try:
            feedback = _feedback(rows, id_, None) + (_feedback(rows, episode_id, episode_id) if first else [])
            yield _found(source, rows, line, kind, json.loads(body), step)._replace(feedback=tuple(feedback))
        except (BadRecordError, InvalidExperienceError, ValueError, TypeError, KeyError, AttributeError) as error:
            yield Problem(line, f"the inference {id_} cannot be read: {error}")


def _found(source: Source, rows: apsw.Connection, line: int, kind: str, row: Row, step: int) -> Found:
    for (body,) in rows.execute("SELECT body FROM beside WHERE key = ? AND kind = 'data'", (row["id"],)):
        row = {**json.loads(body), **{name: value for name, value in row.items() if value is not None}}
    models = [
        json.loads(body)
        for (body,) in rows.execute(
            "SELECT body FROM beside WHERE key = ? AND kind = 'model' ORDER BY sort", (row["id"],)
        )
    ]
    state = {"messages": _messages(_json(row, "input") or {})}
    tools = [_tool(tool) for tool in _json(row, "dynamic_tools") or []]
    output = _json(row, "output")
    info = {
        "inference_id": row["id"],
        "variant": row.get("variant_name"),
        "finish_reason": models[-1].get("finish_reason") if models else None,
        "first_piece_ms": _whole(row.get("ttft_ms")),
    }
    fields: dict[str, Any] = {
        "agent": row.get("function_name") or "default",
        "episode_id": row["episode_id"],
        "step": step,
        "tags": [f"variant={row.get('variant_name')}", *(f"{k}={v}" for k, v in (_json(row, "tags") or {}).items())],
        "policy": models[-1].get("model_name") if models else None,
        "usage": _usage(models),
        "cost": _cost(models),
        "latency_ms": _whole(row.get("processing_time_ms")),
        "error": row.get("error"),
        "created_at": _moment(row),
        "info": {name: fact for name, fact in info.items() if fact is not None},
    }
    base = transition(fields, source)
    action = None if output is None else _answer(output) if kind == "chat" else _json_answer(output)
    payload = {"state": {**state, "tools": tools} if tools else state, "action": action}
    text = {name: msgspec.json.encode(value) for name, value in payload.items()}
    return Found(line, uuid.UUID(row["id"]).bytes, with_payload(base, next_state=None, **text))


def _messages(given: dict[str, Any]) -> list[dict[str, Any]]:
    """TensorZero's input as chat messages."""
    messages: list[dict[str, Any]] = []
    if given.get("system") is not None:
        messages.append({"role": "system", "content": given["system"]})
    for message in given.get("messages", ()):
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        results = [block for block in blocks if block.get("type") == "tool_result"]
        rest = [block for block in blocks if block.get("type") != "tool_result"]
        messages += [{"role": "tool", "tool_call_id": one.get("id"), "content": one.get("result")} for one in results]
        if rest or not results:
            messages.append(_message(str(message.get("role")), rest))
    return messages


def _message(role: str, blocks: list[Any]) -> dict[str, Any]:
    """One message of blocks: text joined, calls of tools in their place, all else as parts."""
    calls = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_call"]
    rest = [block for block in blocks if block not in calls]
    texts = [_words(block) for block in rest]
    content: Any = "".join(text for text in texts if text is not None) if None not in texts else rest
    message: dict[str, Any] = {"role": role, "content": content if rest or not calls else None}
    if calls:
        message["tool_calls"] = [_call(block) for block in calls]
    return message


def _answer(output: Any) -> dict[str, Any]:
    return _message("assistant", output if isinstance(output, list) else [output])


def _json_answer(output: Any) -> dict[str, Any]:
    raw = output.get("raw") if isinstance(output, dict) else None
    return {"role": "assistant", "content": raw if isinstance(raw, str) else msgspec.json.encode(output).decode()}


def _words(block: Any) -> str | None:
    """A block's text; ``None``: it is more than text."""
    if isinstance(block, str):
        return block
    if isinstance(block, dict) and block.get("type") in ("text", "raw_text"):
        text = block.get("text", block.get("value"))
        return text if isinstance(text, str) else None
    return None


def _call(block: dict[str, Any]) -> dict[str, Any]:
    arguments = block.get("raw_arguments", block.get("arguments"))
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    name = block.get("raw_name", block.get("name"))
    return {"id": block.get("id"), "type": "function", "function": {"name": name, "arguments": text}}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _feedback(rows: apsw.Connection, target: str, episode_id: str | None) -> list[Feedback]:
    """What was said about an inference or an episode, in the order in which it was said."""
    found = []
    for (body,) in rows.execute("SELECT body FROM beside WHERE key = ? AND kind = 'feedback' ORDER BY sort", (target,)):
        row = json.loads(body)
        about = {"episode_id": episode_id} if episode_id is not None else {"experience_id": 0}
        said: dict[str, Any] = {"source": _SOURCE}
        if "inference_id" in row:
            value = json.loads(row["value"])
            said |= {"key": "demonstration"}
            said["demonstration"] = _answer(value) if isinstance(value, list) else _json_answer(value)
        elif "metric_name" in row:
            value = row["value"]
            said |= {"key": row["metric_name"], "reward": {"t": 1.0, "f": 0.0}.get(value) if value in "tf" else value}
            said["reward"] = float(said["reward"])
        else:
            said |= {"key": "comment", "comment": row["value"]}
        found.append(Feedback.from_dict({**about, **said}))
    return found


def _usage(models: list[Row]) -> dict[str, int] | None:
    """Tokens of all calls to models that one inference made; a count that one of them lacks is not known."""
    names = {
        "input_tokens": "input_tokens",
        "output_tokens": "output_tokens",
        "cached_tokens": "provider_cache_read_input_tokens",
        "cache_write_tokens": "provider_cache_write_input_tokens",
    }
    counts = {ours: [_whole(model.get(theirs)) for model in models] for ours, theirs in names.items()}
    known = {name: sum(n for n in values if n is not None) for name, values in counts.items() if None not in values}
    return known if models and known else None


def _cost(models: list[Row]) -> int | None:
    """Nano-USD, exact: the column holds USD with nine decimals. ``None`` where one call's is not known."""
    try:
        amounts = [Decimal(str(model["cost"])) for model in models]
    except (KeyError, InvalidOperation):
        return None
    return int(sum(amounts, Decimal(0)) * 10**9) if amounts else None


def _moment(row: Row) -> datetime:
    """When it was: the first 48 bits of an id are milliseconds since 1970 (UUID version 7)."""
    number = uuid.UUID(str(row["id"])).int >> 80
    return datetime.fromtimestamp(number / 1000, UTC)


def _json(row: Row, name: str) -> Any:
    text = row.get(name)
    return None if text is None else json.loads(text)


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)


def _text(field: bytes) -> str | None:
    """A field of PostgreSQL's text format for COPY; ``None``: it is null."""
    if field == b"\\N":
        return None
    return _ESCAPE.sub(_unescaped, field).decode(errors="replace")


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = found[1]
    if code in _LETTERS:
        return _LETTERS[code]
    if code[:1] == b"x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    if code[:1].isdigit() and code[:1] < b"8":
        return bytes([int(code, 8) & 0xFF])
    return code
