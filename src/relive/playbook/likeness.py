"""Whether two lessons are the same, nearly the same, or rivals.

- *The same*: equal but for spacing, case, and punctuation at the ends of words.
- *Nearly the same*: almost the same words. Numbers and negations must be equal: "retry 3 times" and "retry 30 times"
  are two lessons, and so are "do" and "do not".
- *Rivals*: about the same situation, with the same words but for a number, a negation or an opposite. They are kept
  apart; which is right is told by their uplift, and a prompt holds only one of them.
"""

import hashlib
import re
from typing import Literal

from relive.playbook.lesson import LessonText
from relive.storage.text import normalise

Likeness = Literal["same", "near", "rival", "other"]

NEAR = 0.85
"""Share of common words from which on two lessons are nearly the same."""

RIVAL = 0.6
"""Share of common words, without what opposes them, from which on two lessons may be rivals."""

_ENDS = ".,;:!?\"'`()[]{}…“”‘’„«»"
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NEGATIONS = frozenset(
    [
        "not",
        "no",
        "never",
        "don't",
        "dont",
        "doesn't",
        "doesnt",
        "cannot",
        "can't",
        "cant",
        "without",
        "avoid",
        "nicht",
        "kein",
        "keine",
        "nie",
        "stop",
        "skip",
        "refuse",
    ]
)
_OPPOSITES = tuple(
    frozenset(pair.split())
    for pair in (
        "always never",
        "before after",
        "first last",
        "increase decrease",
        "raise lower",
        "more less",
        "more fewer",
        "enable disable",
        "allow deny",
        "allow forbid",
        "accept refuse",
        "accept reject",
        "approve deny",
        "ask assume",
        "start stop",
        "shorter longer",
        "short long",
        "true false",
        "open close",
        "with without",
        "include exclude",
        "do skip",
        "use avoid",
    )
)
_FILLERS = frozenset(
    [
        "a",
        "an",
        "the",
        "to",
        "of",
        "in",
        "on",
        "at",
        "for",
        "and",
        "or",
        "is",
        "are",
        "be",
        "it",
        "its",
        "this",
        "that",
        "you",
        "your",
        "then",
        "when",
        "if",
    ]
)


def identity(text: LessonText) -> bytes:
    """16 bytes that are equal for lessons that say the same but for spacing, case and punctuation."""
    parts = (" ".join(_words(part)) for part in (text.when, text.when_not, text.do))
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()


def likeness(one: LessonText, other: LessonText) -> Likeness:
    """How two lessons stand to each other."""
    if identity(one) == identity(other):
        return "same"
    first, second = (_words(f"{text.when} {text.do} {text.when_not}") for text in (one, other))
    numbers = _numbers(first) == _numbers(second)
    turned = _is_turned(_words(one.do), _words(other.do))
    if numbers and not turned and _common(first, second) >= NEAR:
        return "near"
    plain = [[word for word in words if not _NUMBER.search(word)] for words in (first, second)]
    if (turned or not numbers) and _common(*(_neutral(words) for words in plain)) >= RIVAL:
        return "rival"
    return "other"


def _words(text: str) -> list[str]:
    return [word for piece in normalise(text).split() if (word := piece.strip(_ENDS))]


def _numbers(words: list[str]) -> list[str]:
    return sorted(number for word in words for number in _NUMBER.findall(word))


def _is_turned(first: list[str], second: list[str]) -> bool:
    """Whether the one negates the other, or says its opposite."""
    if sum(w in _NEGATIONS for w in first) % 2 != sum(w in _NEGATIONS for w in second) % 2:
        return True
    ours, theirs = set(first), set(second)
    return any(
        len(pair & ours) == 1 and len(pair & theirs) == 1 and pair & ours != pair & theirs for pair in _OPPOSITES
    )


def _neutral(words: list[str]) -> list[str]:
    """Words without those that turn a meaning round."""
    turning = _NEGATIONS.union(*_OPPOSITES)
    return [word for word in words if word not in turning and word not in _FILLERS]


def _common(first: list[str], second: list[str]) -> float:
    """Jaccard's share of common words, fillers left out."""
    ours, theirs = set(first) - _FILLERS, set(second) - _FILLERS
    whole = ours | theirs
    return len(ours & theirs) / len(whole) if whole else 1.0
