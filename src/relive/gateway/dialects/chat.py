"""Chat completions: one message for each choice, put together from deltas when it is streamed.

Tool calls arrive in pieces. A piece belongs to the call with its index; without an index to the call with its id;
without both to the latest call. Under an index that is taken, a piece with another id *and* a name starts a call of its
own: some servers give all parallel calls the index 0.
"""

from typing import Any

import msgspec

from relive.gateway.dialects.reader import ValueReader, dictionaries, parse, text_or


class ChatReader(ValueReader):
    """Reads answers of ``/v1/chat/completions``; the action is the first choice's message.

    Where several choices were asked for, the others stand beside it under ``other_choices``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[int, MessageParts] = {}
        self._whole: list[msgspec.Raw | dict[str, Any]] = []

    def action(self) -> Any:
        """The assistant's message; ``None``: nothing of it came."""
        messages = self._whole or [self._messages[index].message() for index in sorted(self._messages)]
        if not messages:
            return None
        first, *others = messages
        if not others:
            return first
        return {**(first if isinstance(first, dict) else parse(bytes(first))), "other_choices": others}

    def _body(self, value: dict[str, Any]) -> None:
        self._take_names(value)
        self._take_usage(value)
        choices = dictionaries(value.get("choices"))
        raw = _raw_messages(self._bytes, len(choices))
        for number, choice in enumerate(choices):
            message = choice.get("message")
            if not isinstance(message, dict):
                continue
            self._whole.append(raw[number] if raw else message)
            self.characters += _characters(message)
            if number == 0:
                self.finish_reason = text_or(choice.get("finish_reason"), None)
                self.tokens.take(value, choice)

    def _piece(self, value: dict[str, Any]) -> None:
        if self._is_more_text(value):
            return
        self._take_names(value)
        groq = value.get("x_groq")
        self._take_usage(value if value.get("usage") or not isinstance(groq, dict) else groq)
        for choice in dictionaries(value.get("choices")):
            index = choice.get("index", 0)
            if not isinstance(index, int):
                continue
            parts = self._messages.get(index)
            delta = choice.get("delta")
            if parts is None and (delta or choice.get("finish_reason")):
                parts = self._messages[index] = MessageParts()
            if isinstance(delta, dict) and parts is not None:
                self.characters += parts.add(delta)
            if index == 0:
                self.finish_reason = text_or(choice.get("finish_reason"), self.finish_reason)
                self.tokens.take(value, choice)

    def _is_more_text(self, value: dict[str, Any]) -> bool:
        """Takes a piece that only adds text to the one choice, as nearly all do; False: it does not, or says more."""
        choices = value.get("choices")
        parts = self._messages.get(0)
        if parts is None or self.id is None or type(choices) is not list or len(choices) != 1:
            return False
        choice = choices[0]
        if type(choice) is not dict or choice.get("index") or not _QUIET.isdisjoint(value):
            return False
        delta = choice.get("delta")
        if type(delta) is not dict or delta.keys() != _TEXT_ALONE or type(delta["content"]) is not str:
            return False
        if choice.get("finish_reason") or choice.get("logprobs") or "token_ids" in choice:
            return False
        parts.add_text("content", delta["content"])
        self.characters += len(delta["content"])
        return True


_TEXT_ALONE = {"content"}
_QUIET = frozenset({"usage", "x_groq", "prompt_token_ids"})  # what else a piece may have to say


class MessageParts:
    """A message that arrives in deltas: texts are joined, lists and objects extended, the rest replaced."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._values: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls = ToolCallParts()

    def add(self, delta: dict[str, Any]) -> int:
        """Adds a delta; gives how many characters of text it brought."""
        brought = 0
        for key, value in delta.items():
            if key == "tool_calls":
                brought += self._calls.add(dictionaries(value))
            elif key == "role":
                self._values["role"] = text_or(value, self._values["role"])
            elif isinstance(value, str):
                self.add_text(key, value)
                brought += len(value)
            elif isinstance(value, list) and isinstance(self._values.get(key), list):
                self._values[key] += value
            elif isinstance(value, dict) and isinstance(self._values.get(key), dict):
                brought += _extend(self._values[key], value)
            elif value is not None:
                self._values[key] = value
        return brought

    def add_text(self, key: str, text: str) -> None:
        """Adds to one of its texts."""
        self._texts.setdefault(key, []).append(text)
        self._values.setdefault(key, None)

    def message(self) -> dict[str, Any]:
        """The message as far as it came."""
        texts = {key: "".join(parts) for key, parts in self._texts.items()}
        message = {**self._values, **texts}
        calls = self._calls.calls()
        return {**message, "tool_calls": calls} if calls else message


class ToolCallParts:
    """The tool calls of one message, from their pieces; `calls` gives them by index, then in the order they came."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Any]] = []

    def add(self, pieces: list[dict[str, Any]]) -> int:
        """Adds the pieces of one delta; gives how many characters they brought."""
        brought = 0
        for piece in pieces:
            function = piece.get("function")
            function = function if isinstance(function, dict) else {}
            part = self._part(piece, text_or(function.get("name"), None))
            part["id"] = part["id"] or text_or(piece.get("id"), None)
            name, arguments = function.get("name"), function.get("arguments")
            if isinstance(name, str) and name != part["name"]:  # some servers repeat the whole name with every piece
                part["name"] += name
                brought += len(name)
            if isinstance(arguments, str):
                part["arguments"].append(arguments)
                brought += len(arguments)
            elif arguments is not None:  # a few servers send an object where its text belongs
                part["arguments"] = [msgspec.json.encode(arguments).decode()]
            part["extra"].update({k: v for k, v in piece.items() if k not in {"index", "id", "function"} and v})
        return brought

    def calls(self) -> list[dict[str, Any]]:
        """The calls as they stand in a message; arguments are the text that the model wrote, broken or not."""
        ordered = sorted(self._parts, key=lambda part: part["index"])  # stable: those of one index stay in order
        return [
            {
                "id": part["id"],
                "type": "function",
                **part["extra"],
                "function": {"name": part["name"], "arguments": "".join(part["arguments"])},
            }
            for part in ordered
        ]

    def _part(self, piece: dict[str, Any], name: str | None) -> dict[str, Any]:
        identity, index = text_or(piece.get("id"), None), piece.get("index")
        same_id = [part for part in self._parts if identity is not None and part["id"] == identity]
        if isinstance(index, int):
            same_index = [part for part in self._parts if part["index"] == index]
            candidates = [part for part in same_index if part in same_id] or same_index[-1:]
            if candidates and not _starts_another(candidates[-1], identity, name):
                return candidates[-1]
        elif same_id:
            return same_id[-1]
        elif identity is None and self._parts and (name is None or not self._parts[-1]["name"]):
            return self._parts[-1]
        last = max((part["index"] for part in self._parts), default=-1)
        position = index if isinstance(index, int) else last + 1
        part: dict[str, Any] = {"index": position, "id": None, "name": "", "arguments": [], "extra": {}}
        self._parts.append(part)
        return part


def _starts_another(part: dict[str, Any], identity: str | None, name: str | None) -> bool:
    return identity is not None and part["id"] is not None and identity != part["id"] and name is not None


def _extend(whole: dict[str, Any], piece: dict[str, Any]) -> int:
    """Joins a piece of an object to it (audio, a function call of the old kind); gives how many characters."""
    brought = 0
    for key, value in piece.items():
        if isinstance(value, str) and isinstance(whole.get(key), str) and key not in {"id", "type"}:
            whole[key] += value
            brought += len(value)
        elif value is not None:
            whole[key] = value
    return brought


def _characters(message: dict[str, Any]) -> int:
    texts = [message.get(key) for key in ("content", "reasoning_content", "reasoning", "refusal")]
    calls = [call.get("function") for call in dictionaries(message.get("tool_calls"))]
    texts += [call.get(key) for call in calls if isinstance(call, dict) for key in ("name", "arguments")]
    return sum(len(text) for text in texts if isinstance(text, str))


class _RawChoice(msgspec.Struct):
    message: msgspec.Raw = msgspec.Raw()


class _RawAnswer(msgspec.Struct):
    choices: list[_RawChoice] = []


def _raw_messages(body: bytes, count: int) -> list[msgspec.Raw]:
    """The bytes of each choice's message; empty where a strict reader cannot tell them apart."""
    try:
        choices = msgspec.json.decode(body, type=_RawAnswer).choices
    except (msgspec.DecodeError, RecursionError):
        return []
    return [choice.message.copy() for choice in choices] if len(choices) == count else []
