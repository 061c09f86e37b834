"""Text completions and embeddings: a prompt and the text that goes on from it; texts and their vectors."""

from typing import Any

from relive.gateway.dialects.reader import ValueReader, dictionaries, text_or


class CompletionReader(ValueReader):
    """Reads answers of ``/v1/completions``; the action is the first choice's text, or the list of all texts."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[int, list[str]] = {}

    def action(self) -> Any:
        """The text, or the texts by index where there are several; ``None``: nothing came."""
        texts = ["".join(self._texts[index]) for index in sorted(self._texts)]
        return (texts if len(texts) > 1 else texts[0]) if texts else None

    def _body(self, value: dict[str, Any]) -> None:
        self._piece(value)

    def _piece(self, value: dict[str, Any]) -> None:
        self._take_names(value)
        self._take_usage(value)
        for number, choice in enumerate(dictionaries(value.get("choices"))):
            index, text = choice.get("index", number), choice.get("text")
            if not isinstance(index, int) or not isinstance(text, str):
                continue
            self._texts.setdefault(index, []).append(text)
            self.characters += len(text)
            if index == 0:
                self.finish_reason = text_or(choice.get("finish_reason"), self.finish_reason)
                self.tokens.take(value, choice)


class EmbeddingReader(ValueReader):
    """Reads answers of ``/v1/embeddings``; the action says how many vectors of which length came.

    The vectors themselves are not kept: they can be computed again, and are a hundred times larger than the text.
    """

    def __init__(self) -> None:
        super().__init__()
        self._action: dict[str, int] | None = None

    def action(self) -> Any:
        """``{"embeddings": count, "dimensions": length}``; ``None``: nothing came."""
        return self._action

    def _body(self, value: dict[str, Any]) -> None:
        self._take_names(value)
        self._take_usage(value)
        vectors = [entry.get("embedding") for entry in dictionaries(value.get("data"))]
        first = vectors[0] if vectors else None
        # Base64 text of float32 numbers, four bytes each, or the numbers themselves
        length = len(first) if isinstance(first, list) else len(first) * 3 // 16 if isinstance(first, str) else 0
        self._action = {"embeddings": len(vectors), "dimensions": length}

    def _piece(self, value: dict[str, Any]) -> None:
        self._take_names(value)  # embeddings are not streamed
