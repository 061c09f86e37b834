"""OpenAI's Responses: items of output, and a stream whose last event repeats the whole answer.

The record speaks one language: items become chat messages (`as_messages`), in the request's input as in the answer, so
that an agent's episodes look the same whichever API it uses. The answer's own items stand beside the message under
``output``, for what a message cannot hold.
"""

from typing import Any

import msgspec

from relive.gateway.dialects.reader import ValueReader, dictionaries, text_or

_ITEMS = {"response.output_item.added", "response.output_item.done"}
_ENDS = {"response.completed", "response.incomplete", "response.failed"}
_SPOKEN = ("message", "function_call")
_TEXT_PARTS = ("input_text", "output_text", "text")
_TEXT_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.function_call_arguments.delta": "arguments",
    "response.reasoning_summary_text.delta": "summary",
    "response.reasoning_text.delta": "reasoning",
}


class ResponseReader(ValueReader):
    """Reads answers of ``/v1/responses``."""

    def __init__(self) -> None:
        super().__init__()
        self._output: list[dict[str, Any]] | None = None
        self._items: dict[str, dict[str, Any]] = {}
        self._texts: dict[str, dict[str, list[str]]] = {}

    def action(self) -> Any:
        """The assistant's message with its ``output`` items; ``None``: nothing of it came."""
        items = self._output if self._output is not None else self._received()
        if not items:
            return None
        messages = as_messages([item for item in items if item.get("type") in _SPOKEN]) or []
        message = messages[0] if messages else {"role": "assistant", "content": None}
        return {**message, "output": items}

    def _is_answer(self, value: dict[str, Any]) -> bool:
        return value.get("object") == "response" and value.get("status") not in ("failed", None)

    def _body(self, value: dict[str, Any]) -> None:
        self._take_names(value)
        self._take_usage(value)
        details = value.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        self.finish_reason = text_or(reason, text_or(value.get("status"), None))
        if isinstance(value.get("output"), list):
            self._output = dictionaries(value["output"])
            self.characters = sum(_characters(item) for item in self._output)

    def _piece(self, value: dict[str, Any]) -> None:
        kind = text_or(value.get("type"), None)
        response = value.get("response")
        if kind in _ENDS and isinstance(response, dict):
            self._body(response)
            self._output = self._output or None  # some servers leave the items out of the last event
            if kind == "response.failed":
                self.failure = msgspec.json.encode({"error": response.get("error")})
            self.ended = self.failure is None
        elif kind == "error":
            self.failure = self._bytes
        elif isinstance(response, dict):
            self._take_names(response)
        elif kind in _ITEMS and isinstance(value.get("item"), dict):
            self._items[_key(value, value["item"])] = value["item"]
        elif kind in _TEXT_DELTAS and isinstance(value.get("delta"), str):
            texts = self._texts.setdefault(_key(value, {}), {})
            texts.setdefault(_TEXT_DELTAS[kind], []).append(value["delta"])
            self.characters += len(value["delta"])

    def _received(self) -> list[dict[str, Any]]:
        """The items of a stream that did not come to its end, filled with what was received."""
        items = []
        for key in dict.fromkeys([*self._items, *self._texts]):
            item = dict(self._items.get(key, {"type": "message", "role": "assistant", "content": []}))
            texts = {name: "".join(parts) for name, parts in self._texts.get(key, {}).items()}
            if item.get("type") == "function_call":
                item["arguments"] = item.get("arguments") or texts.get("arguments", "")
            elif item.get("type") == "message" and not item.get("content"):
                item["content"] = [{"type": "output_text", "text": texts.get("text", "")}]
            elif item.get("type") == "reasoning" and not item.get("summary"):
                item["summary"] = [{"type": "summary_text", "text": texts.get("summary", texts.get("reasoning", ""))}]
            items.append(item)
        return items


def as_messages(items: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Responses items as chat messages; ``None`` where one has no such form (a reference, a built-in tool's call).

    What the assistant did in a row is one message; reasoning, which only the provider can read, is left out.
    """
    messages: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message" and isinstance(item.get("role"), str):
            content = _content(item.get("content"))
            if item["role"] == "assistant":
                message = _assistant(messages)
                message["content"] = _joined(message["content"], content)
            else:
                messages.append({"role": item["role"], "content": content})
        elif kind == "function_call":
            call = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls = _assistant(messages).setdefault("tool_calls", [])
            calls.append({"id": item.get("call_id"), "type": "function", "function": call})
        elif kind == "function_call_output":
            content = _content(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind != "reasoning":
            return None
    return messages


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message at the end, begun if there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _content(content: Any) -> Any:
    """Parts as plain text where they are nothing else."""
    parts = dictionaries(content)
    if not isinstance(content, list) or len(parts) != len(content):
        return content
    texts = [part.get("text") for part in parts if part.get("type") in _TEXT_PARTS]
    plain = [text for text in texts if isinstance(text, str)]
    return "".join(plain) if len(plain) == len(parts) else content


def _joined(earlier: Any, later: Any) -> Any:
    if earlier is None:
        return later
    return earlier + later if isinstance(earlier, str) and isinstance(later, str) else [earlier, later]


def _key(value: dict[str, Any], item: dict[str, Any]) -> str:
    """What tells the items of a stream apart: their position, or their id where a server leaves it out."""
    index = value.get("output_index")
    return str(index) if isinstance(index, int) else str(value.get("item_id") or item.get("id") or "")


def _characters(item: dict[str, Any]) -> int:
    texts = [item.get("name"), item.get("arguments")]
    texts += [part.get("text") for key in ("content", "summary") for part in dictionaries(item.get(key))]
    return sum(len(text) for text in texts if isinstance(text, str))
