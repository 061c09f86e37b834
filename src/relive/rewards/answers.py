"""Rules that read an answer's text: equality, containment, JSON, regular expressions, length, tags.

A rule gives a reward between 0 and 1, or ``None`` where there is nothing to score: no answer, an answer cut off by an
error, or no expected value for this transition. Unscored is never 0.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from relive.errors import ReliveError
from relive.experience import Transition

Expected = str | Callable[[Transition], str | None]
"""What the right answer is: one text for all, or looked up for each transition (``None``: not known, not scored)."""

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)


class RewardError(ReliveError, ValueError):
    """A reward function was set up in a way that cannot work; the message names what to change."""


def answer_text(transition: Transition) -> str | None:
    """The text of what the agent answered.

    An assistant's message gives its content (parts joined), one that only calls tools the empty text. ``None``: the
    action is no text at all (a number, a list of joint angles, nothing).
    """
    action = transition.action
    if isinstance(action, str):
        return action
    if not isinstance(action, dict):
        return None
    content = action.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return "" if "content" in action or "tool_calls" in action else None


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """The (language, body) of each ``` block, in order; the language in lower case, empty where none is given."""
    return [(language.lower(), body) for language, body in _FENCE.findall(text)]


def scorable_text(transition: Transition) -> str | None:
    """The answer's text if it is whole; ``None`` where an error cut it off or there is no text."""
    return None if transition.error is not None else answer_text(transition)


def _expected(expected: Expected, transition: Transition) -> str | None:
    return expected if isinstance(expected, str) else expected(transition)


def _comparable(text: str, *, ignore_case: bool, strip: bool) -> str:
    text = unicodedata.normalize("NFC", text)
    text = text.strip() if strip else text
    return text.casefold() if ignore_case else text


@dataclass(frozen=True, kw_only=True)
class ExactMatch:
    """1 if the answer is the expected text, else 0. Texts that differ only in Unicode composition are equal.

    Attributes:
        expected: The right answer, or a function of the transition.
        ignore_case: Compare without case.
        strip: Ignore white space around both.
    """

    expected: Expected
    ignore_case: bool = False
    strip: bool = True

    def __call__(self, transition: Transition) -> float | None:
        """Scores one transition."""
        text, expected = scorable_text(transition), _expected(self.expected, transition)
        if text is None or expected is None:
            return None
        given, right = (_comparable(t, ignore_case=self.ignore_case, strip=self.strip) for t in (text, expected))
        return float(given == right)


@dataclass(frozen=True, kw_only=True)
class Contains:
    """1 if the answer holds the texts, else 0.

    Attributes:
        texts: One text or several, none of them empty.
        need: Whether ``"all"`` of them must be there or ``"any"``.
        ignore_case: Compare without case.
    """

    texts: str | Sequence[str]
    need: Literal["all", "any"] = "all"
    ignore_case: bool = True

    def __post_init__(self) -> None:
        if not self._texts() or not all(self._texts()):
            raise RewardError("Contains needs at least one text, and no empty one: every answer holds the empty text.")

    def _texts(self) -> list[str]:
        return [self.texts] if isinstance(self.texts, str) else list(self.texts)

    def __call__(self, transition: Transition) -> float | None:
        """Scores one transition."""
        text = scorable_text(transition)
        if text is None:
            return None
        held = _comparable(text, ignore_case=self.ignore_case, strip=False)
        found = [_comparable(t, ignore_case=self.ignore_case, strip=False) in held for t in self._texts()]
        return float(all(found) if self.need == "all" else any(found))


@dataclass(frozen=True, kw_only=True)
class JSONValid:
    """1 if the answer is one JSON value (NaN and trailing text are not JSON), else 0.

    Attributes:
        keys: Keys that the value, an object, must have; empty: any JSON value will do.
        fenced: Also accept an answer whose only ``` block holds the value.
    """

    keys: Sequence[str] = ()
    fenced: bool = True

    def __call__(self, transition: Transition) -> float | None:
        """Scores one transition."""
        text = scorable_text(transition)
        if text is None:
            return None
        blocks = fenced_blocks(text) if self.fenced else []
        if len(blocks) == 1:
            text = blocks[0][1]
        try:
            value: Any = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return 0.0
        return float(not self.keys or (isinstance(value, dict) and all(key in value for key in self.keys)))


@dataclass(frozen=True, kw_only=True)
class Regex:
    """1 if the pattern is found in the answer, else 0.

    Python's matcher has no time limit: nested repetitions such as ``(a+)+$`` can take for ever on a hostile answer.

    Attributes:
        pattern: A regular expression of Python's `re`.
        whole: The pattern must match the whole answer, white space around it left out.
        ignore_case: Match without case.
    """

    pattern: str
    whole: bool = False
    ignore_case: bool = False

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise RewardError(f"The reward's pattern {self.pattern!r} is no regular expression: {error}.") from error

    def __call__(self, transition: Transition) -> float | None:
        """Scores one transition."""
        text = scorable_text(transition)
        if text is None:
            return None
        flags = re.IGNORECASE if self.ignore_case else 0
        found = re.fullmatch(self.pattern, text.strip(), flags) if self.whole else re.search(self.pattern, text, flags)
        return float(found is not None)


@dataclass(frozen=True, kw_only=True)
class LengthBand:
    """1 while the answer's length is within the band, falling in a straight line to 0 over `margin` outside it.

    Attributes:
        minimum: The shortest length that is fully right.
        maximum: The longest.
        margin: How far outside the band the reward reaches 0; 0 means at once.
        unit: Whether lengths count ``"characters"`` or ``"words"``.
    """

    minimum: int = 0
    maximum: int
    margin: int = 0
    unit: Literal["characters", "words"] = "characters"

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum or self.margin < 0:
            raise RewardError("LengthBand needs 0 <= minimum <= maximum and a margin of at least 0.")

    def __call__(self, transition: Transition) -> float | None:
        """Scores one transition."""
        text = scorable_text(transition)
        if text is None:
            return None
        length = len(text) if self.unit == "characters" else len(text.split())
        outside = max(self.minimum - length, length - self.maximum, 0)
        if outside == 0:
            return 1.0
        return max(0.0, 1.0 - outside / self.margin) if self.margin else 0.0


@dataclass(frozen=True, kw_only=True)
class Format:
    """1 if the answer is nothing but the given tags, each once and in order, with something in each; else 0.

    Attributes:
        tags: Names of the tags; the default is ``<think>…</think><answer>…</answer>``.
    """

    tags: Sequence[str] = ("think", "answer")

    def __post_init__(self) -> None:
        if not self.tags or len(set(self.tags)) != len(self.tags):
            raise RewardError("Format needs at least one tag, and no tag twice.")

    def __call__(self, transition: Transition) -> float | None:
        """Scores one transition."""
        text = scorable_text(transition)
        if text is None:
            return None
        if any(text.count(mark) != 1 for tag in self.tags for mark in (f"<{tag}>", f"</{tag}>")):
            return 0.0
        rest = text.strip()
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            if not rest.startswith(opening) or closing not in rest:
                return 0.0
            body, _, rest = rest.removeprefix(opening).partition(closing)
            if not body.strip():
                return 0.0
            rest = rest.lstrip()
        return float(not rest)


def answer_quality(transition: Transition) -> float:
    """Article 001's reward of an answer: a weak proxy that looks at form only and never at whether it is right.

    A call that failed gives -1, an empty answer -0.5. Else the sum of: length, up to 500 characters, times 0.3;
    structure (more than one line) 0.3, else 0.1; a code block 0.4, else 0.2. A long wrong answer with a code block gets
    the full 1.0, so it must not be optimised against without a reward that checks the answer.
    """
    if transition.error is not None:
        return -1.0
    text = answer_text(transition)
    if not text:
        return -0.5
    length = min(len(text) / 500, 1.0) * 0.3
    structure = 0.3 if "\n" in text else 0.1
    code = 0.4 if "```" in text else 0.2
    return length + structure + code
