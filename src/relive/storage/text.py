"""Text for full-text search: what is indexed of a state, and how a user's text is looked up.

Two boundaries hold here. A user's text is never read as a query language: `match_query` breaks it into tokens, writes
each as a quoted string, and joins them by OR. And the index sees tokens, not text: `index_text` gives them joined by
spaces, in a form that FTS5's ``ascii`` tokenizer splits at the spaces only and otherwise leaves alone (it takes every
non-ASCII character as part of a token, so ASCII symbols inside a token are written as their full-width twins: ``c++``
is ``c＋＋``).

How words are found in languages that write them differently:

- Letters are compared without case and without marks (``thẻ``, ``THE`` and ``the`` are one; ``đ`` is ``d``).
- Chinese, Japanese, Korean, Thai and their like, written without spaces, are cut into overlapping pairs of characters.
- German joins words. A long word is also indexed by its endings, and a query word finds any token that begins with it:
  ``Verlust`` and ``Karten`` both find ``Kreditkartenverlust``. A long query word also looks for its own parts.
- ``POL-358``, ``GB/s``, ``20.04``, ``don't`` and ``C++`` are kept whole, beside their parts.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from relive.experience import Transition
from relive.storage import _text

FTS5_TOKENIZER = "ascii"
"""The ``tokenize=`` option of the FTS5 table that holds what `index_text` gives."""

NOTES_BEGIN, NOTES_END = "<relive-notes>", "</relive-notes>"
"""The border of what was put into a prompt from memory. It is never indexed, recalled or learnt from."""

MAX_CHARACTERS = 2_000
"""Only so much of a state is indexed: search over whole payloads costs fifteen times as much."""

MAX_QUERY_TOKENS = 64
"""At most so many tokens are looked up; of a longer text the most telling ones."""

_SHORT_TALK = 300  # characters; a conversation's earlier messages are added while the later ones are shorter than this
_LONG_WORD = 9  # letters; from here on a word may be a compound of two others
_SHORTEST_PART = 4
_PREFIX_FROM = 5  # letters; "with" must not find "withdrawal", "karte" may find "kartenverlust"
_LONGEST_TOKEN = 64
_LONGEST_INTEGER = 1024  # bits; nobody looks for a longer one, and Python may refuse to print it

# Marks that only decorate a letter. Indic vowel signs and the Japanese voicing marks change it and stay.
_MARKS = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u064b-\u065f\u0670\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
)
_LETTERS_WITHOUT_DECOMPOSITION = str.maketrans(
    {
        "đ": "d",
        "ð": "d",
        "ł": "l",
        "ø": "o",
        "ı": "i",
        "æ": "ae",
        "œ": "oe",
        "þ": "th",
        "ħ": "h",
        "’": "'",
        "ʼ": "'",
        "‑": "-",
    }
)
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana and iteration marks
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Han
    "\uac00-\ud7a3"  # Hangul: words are spaced, but particles stick to them
)
_LETTER = f"(?:[^\\W_{_UNSPACED}]|[\u0900-\u0963\u0966-\u0dff])"
_PIECE = re.compile(f"(?P<unspaced>[{_UNSPACED}]+)|(?P<word>{_LETTER}+(?:[-_/.:'@&+#]{_LETTER}+)*[+#]{{0,3}})")
_PARTS = re.compile(f"{_LETTER}+")
_ASCII_WORD = re.compile(
    "[a-z0-9]+(?:[-_/.:'@&+#][a-z0-9]+)*[+#]{0,3}"
)  # what _PIECE finds in ASCII, five times faster
_FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F) if not chr(code).isalnum()}


def index_text(transition: Transition) -> str:
    """The tokens of a transition's state, joined by spaces, ready for the full-text index."""
    text = state_text(transition.state)
    ascii_words = _text.ascii_tokens(text)
    return " ".join(tokens(text)) if ascii_words is None else ascii_words


def state_text(state: Any) -> str:
    """The part of a state that says what is asked, at most `MAX_CHARACTERS` long.

    For chat messages (a list of them, or an object with ``messages``) that is the last user message, with the ones
    before it while the text is short: an answer such as "yes, please" says little alone. For any other JSON value it is
    its words and numbers, without long rows of numbers.
    """
    messages = state.get("messages") if isinstance(state, dict) else state
    if isinstance(messages, list) and messages and all(isinstance(m, dict) and "role" in m for m in messages):
        return _conversation(messages)
    if isinstance(state, str):
        return without_notes(state)[:MAX_CHARACTERS]
    words: list[str] = []
    _collect(state, words, MAX_CHARACTERS)
    return " ".join(words)[:MAX_CHARACTERS]


def without_notes(text: str) -> str:
    """A text without what was put into it from memory."""
    if NOTES_BEGIN not in text:
        return text
    kept, *rest = text.split(NOTES_BEGIN)
    return kept + "".join(piece.partition(NOTES_END)[2].lstrip("\n") for piece in rest)


def tokens(text: str) -> list[str]:
    """The tokens under which `text` is indexed, in order, repeated as often as they occur."""
    found: list[str] = []
    for unspaced, word in _pieces(text):
        if unspaced:
            found.extend(unspaced)
            found.extend(_pairs(unspaced))
            continue
        parts = _parts(word)
        if parts != [word] and len(word) <= _LONGEST_TOKEN:
            found.append(word.translate(_FULL_WIDTH))
        for part in parts:
            found.append(part)
            if len(part) >= _LONG_WORD:
                found.extend(_endings(part))
    return found


def match_query(text: str) -> str | None:
    """An FTS5 MATCH expression that finds what shares words with `text`; ``None`` if it holds no word.

    Whatever `text` holds, the expression is a list of quoted tokens joined by OR, at most `MAX_QUERY_TOKENS` of them:
    of a longer text those with digits or symbols and the longest ones, which are the rarest, and of equally long ones
    (pairs of characters all are) those nearest its beginning and its end, where what is asked mostly stands.
    """
    whole: dict[str, None] = {}  # a dict keeps the order and drops repetitions
    parts: dict[str, None] = {}
    for unspaced, word in _pieces(text):
        if unspaced:
            whole.update(dict.fromkeys(f'"{pair}"' for pair in _pairs(unspaced) or [unspaced]))
            continue
        found = _parts(word)
        if found != [word] and len(word) <= _LONGEST_TOKEN:
            whole[f'"{word.translate(_FULL_WIDTH)}"'] = None
        for part in found:
            whole[f'"{part}"*' if len(part) >= _PREFIX_FROM else f'"{part}"'] = None
            parts.update(dict.fromkeys(f'"{p}"' for p in (*_endings(part), *_beginnings(part))))
    chosen = _most_telling(list(whole), MAX_QUERY_TOKENS)
    chosen += _most_telling([part for part in parts if part not in whole], MAX_QUERY_TOKENS - len(chosen))
    return " OR ".join(chosen) or None


def normalise(text: str) -> str:
    """`text` in lower case, without decorating marks, compatibility forms (full-width, ligatures) made plain."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKC", text).casefold().translate(_LETTERS_WITHOUT_DECOMPOSITION)
    return unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFD", text)))


def _pieces(text: str) -> Iterable[tuple[str, str]]:
    plain = normalise(text)
    return [("", word) for word in _ASCII_WORD.findall(plain)] if plain.isascii() else _PIECE.findall(plain)


def _parts(word: str) -> list[str]:
    """The runs of letters and digits in a word: ``gb/s`` has two."""
    if word.isalnum() and len(word) <= _LONGEST_TOKEN:
        return [word]
    return [part[:_LONGEST_TOKEN] for part in _PARTS.findall(word)]


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)]


def _endings(word: str) -> list[str]:
    """The parts of a long word that could be its last words; together with prefix search they find middle ones too."""
    if len(word) < _LONG_WORD or not word.isalpha():
        return []
    return [word[i:] for i in range(_SHORTEST_PART, len(word) - _SHORTEST_PART + 1)]


def _beginnings(word: str) -> list[str]:
    if len(word) < _LONG_WORD or not word.isalpha():
        return []
    return [word[:i] for i in range(_PREFIX_FROM, len(word))]


def _most_telling(terms: list[str], count: int) -> list[str]:
    """At most `count` of `terms`, in their order; those with digits or symbols first, then the longest, then the outer.

    Length is in bytes: a pair of characters, a word of its own where words are written without spaces, counts as six.
    """
    if len(terms) <= count:
        return terms
    last = len(terms) - 1
    ranked = sorted(
        range(len(terms)),
        key=lambda i: (terms[i].strip('"*').isalpha(), -len(terms[i].encode()), min(i, last - i), i),
    )
    return [terms[i] for i in sorted(ranked[: max(count, 0)])]


def _conversation(messages: list[dict[str, Any]]) -> str:
    """The last user messages; where nobody is called a user, the last message."""
    said: list[str] = []
    length = 0
    for message in reversed([m for m in messages if m["role"] == "user"] or messages[-1:]):
        text = _content(message.get("content"))
        if said and length + len(text) > _SHORT_TALK:
            break
        said.append(text[:MAX_CHARACTERS])
        length += len(text)
    return "\n".join(reversed(said))[:MAX_CHARACTERS]


def _content(content: Any) -> str:
    """A message's text: a plain string, or the text parts of a list."""
    if isinstance(content, str):
        return without_notes(content)
    if isinstance(content, list):
        texts = [p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)]
        return "\n".join(kept for text in texts if (kept := without_notes(text)))
    return ""


def _collect(value: Any, words: list[str], budget: int) -> int:
    """Adds the words of a JSON value to `words`; returns how many characters of the budget are left."""
    if budget <= 0 or value is None or (isinstance(value, int) and value.bit_length() > _LONGEST_INTEGER):
        return budget
    if isinstance(value, str | bool | int | float):
        words.append(str(value)[:budget])
        return budget - len(words[-1]) - 1
    if isinstance(value, dict):
        for key, entry in value.items():
            budget = _collect(entry, words, _collect(str(key), words, budget))
    elif isinstance(value, list | tuple) and not (len(value) > 16 and isinstance(value[0], int | float)):
        for entry in value:
            budget = _collect(entry, words, budget)
    return budget
