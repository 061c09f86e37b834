"""Anthropic's messages: an assistant's turn made of blocks, each started, filled by deltas and stopped.

A tool's input arrives as pieces of JSON text. It is kept as that text, byte for byte, so that numbers of any size stay
exact; a text that is no JSON (cut off) is kept as a string.
"""

from typing import Any

import msgspec

from relive.gateway.dialects.reader import ValueReader, dictionaries, parse, text_or

_TEXT_OF_DELTA = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}


class MessageReader(ValueReader):
    """Reads answers of ``/v1/messages``; the action is ``{"role": "assistant", "content": [blocks]}``."""

    def __init__(self) -> None:
        super().__init__()
        self._content: msgspec.Raw | list[Any] | None = None
        self._blocks: dict[int, _Block] = {}
        self._reported: dict[str, Any] = {}

    def action(self) -> Any:
        """The assistant's message; ``None``: nothing of it came."""
        if self._content is not None:
            return {"role": "assistant", "content": self._content}
        if not self._blocks:
            return None
        return {"role": "assistant", "content": [self._blocks[index].value() for index in sorted(self._blocks)]}

    def _is_answer(self, value: dict[str, Any]) -> bool:
        return value.get("type") in ("message", "message_start")

    def _body(self, value: dict[str, Any]) -> None:
        self._take_names(value)
        self.finish_reason = text_or(value.get("stop_reason"), None)
        self._take_usage(value)
        content = value.get("content")
        if not isinstance(content, list):
            return
        self._content = _raw_content(self._bytes) or content
        self.characters += sum(_characters(block) for block in dictionaries(content))

    def _piece(self, value: dict[str, Any]) -> None:
        kind, index = value.get("type"), value.get("index")
        if kind == "message_start" and isinstance(value.get("message"), dict):
            self._take_names(value["message"])
            self._report(value["message"].get("usage"))
        elif kind == "content_block_start" and isinstance(index, int) and isinstance(value.get("content_block"), dict):
            self._blocks[index] = _Block(value["content_block"])
            self.characters += _characters(value["content_block"])
        elif kind == "content_block_delta" and isinstance(index, int) and isinstance(value.get("delta"), dict):
            block = self._blocks.setdefault(index, _Block({"type": "text", "text": ""}))
            self.characters += block.add(value["delta"])
        elif kind == "message_delta":
            delta = value.get("delta")
            self.finish_reason = text_or(
                delta.get("stop_reason") if isinstance(delta, dict) else None, self.finish_reason
            )
            self._report(value.get("usage"))
        elif kind == "message_stop":
            self.ended = self.failure is None

    def _report(self, usage: Any) -> None:
        """Takes a report of usage; a later one holds running totals and may leave out what the first said."""
        if isinstance(usage, dict):
            self._reported.update({key: count for key, count in usage.items() if count is not None})
            self._take_usage({"usage": self._reported})


class _Block:
    """One content block as it grows."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._start = start
        self._texts: dict[str, list[str]] = {}
        self._input: list[str] = []
        self._citations: list[Any] = []

    def add(self, delta: dict[str, Any]) -> int:
        """Adds a delta; gives how many characters it brought."""
        kind = delta.get("type")
        if kind == "input_json_delta" and isinstance(delta.get("partial_json"), str):
            self._input.append(delta["partial_json"])
            return len(delta["partial_json"])
        if kind == "citations_delta":
            self._citations.append(delta.get("citation"))
            return 0
        key = _TEXT_OF_DELTA.get(str(kind))
        text = delta.get(key) if key else None
        if key is None or not isinstance(text, str):
            return 0
        self._texts.setdefault(key, []).append(text)
        return 0 if key == "signature" else len(text)

    def value(self) -> dict[str, Any]:
        """The block as far as it came."""
        block = dict(self._start)
        for key, parts in self._texts.items():
            block[key] = str(block.get(key) or "") + "".join(parts)
        if self._input:
            text = "".join(self._input)
            block["input"] = msgspec.Raw(text.encode()) if _is_json(text) else text
        if self._citations:
            block["citations"] = [*(block.get("citations") or []), *self._citations]
        return block


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def _characters(block: dict[str, Any]) -> int:
    texts = [block.get(key) for key in ("text", "thinking", "name")]
    given = block.get("input")
    return sum(len(text) for text in texts if isinstance(text, str)) + (len(msgspec.json.encode(given)) if given else 0)


class _RawAnswer(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw()


def _raw_content(body: bytes) -> msgspec.Raw | None:
    """The bytes of the blocks; ``None`` where a strict reader cannot find them."""
    try:
        content = msgspec.json.decode(body, type=_RawAnswer).content.copy()
    except (msgspec.DecodeError, RecursionError):
        return None
    return content if isinstance(parse(bytes(content)), list) else None
