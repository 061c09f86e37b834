"""How far a lesson is trusted: what in its words is suspicious, where its words come from, and when it may be used.

A lesson comes from what agents saw, and what agents see is written by anybody. Three things stand between that and a
prompt:

1. *Its words.* Lessons with addresses, secrets, or language that changes rules, permissions or identity go to
   quarantine (`suspicions`). Word lists catch the careless only, hence the other two.
2. *Its provenance.* A lesson whose words stand in what came from outside (tool results, pages, what users wrote) is an
   instruction that somebody else wrote, not something that was learnt from success: quarantine (`quoted_share`), also
   where its words were turned round (`echoed_share`).
3. *Its sources.* By itself a lesson becomes active only after enough supporting episodes from enough independent
   sources; one agent that repeats something is one source (`Trust`). And at autonomy 1 and 2 only people activate.

An active lesson is still data in a marked block, still on trial by holdout, and can be rolled back.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from relive.playbook.lesson import LessonText
from relive.playbook.suspicion import ALREADY_NEGATIVE, FORBIDS, PATTERNS
from relive.storage.redaction import DEFAULT as REDACTOR
from relive.storage.text import normalise

QUOTED = 0.5
"""Share of a lesson's word triples that may stand in outside text."""

ECHOED = 0.75
"""Share of the words that carry a lesson which may stand close together in outside text."""

MOST_TEXT = 1_000_000
"""Characters of outside text of an experience; where there are more, they may hide what a lesson was taken from."""

_RUN = 3  # words that must follow one another to count as quoted
_SENTENCE = 8  # words from which on a condition or a reason can hold an instruction
_FEWEST, _CLOSE = 4, 3  # words that carry a lesson; how many words of outside text for each of them count as close


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """When a lesson is used without a person's approval.

    Attributes:
        autonomy: 1: experiences are recorded, lessons only people write. 2: lessons are proposed, a person approves
            each. 3: lessons become active by themselves, policy updates are approved. 4: both by themselves.
        episodes: Supporting episodes that a lesson needs to become active by itself.
        sources: Agents that these must come from.
    """

    autonomy: Annotated[int, Meta(ge=1, le=4)] = 2
    episodes: Annotated[int, Meta(ge=1)] = 3
    sources: Annotated[int, Meta(ge=1)] = 2

    def __post_init__(self) -> None:
        if not 1 <= self.autonomy <= 4:
            raise ValueError(f"autonomy is {self.autonomy}; it must be from 1 to 4.")
        if self.episodes < 1 or self.sources < 1:
            raise ValueError("episodes and sources must be at least 1.")

    def activates(self, episodes: int, sources: int, opposed: int) -> bool:
        """Whether a candidate with this support becomes active by itself."""
        enough = episodes >= self.episodes and sources >= self.sources
        return self.autonomy >= 3 and enough and opposed * 2 <= episodes


def suspicions(text: LessonText) -> tuple[str, ...]:
    """What is suspicious about a lesson's words, each in a few words; empty: nothing."""
    found = []
    # A secret is looked for in the text as written, all else without case, marks, invisible letters and look-alikes.
    title = "" if text.do.startswith(text.title.rstrip("…")) else text.title
    whole = "\n".join((title, text.when, text.when_not, text.do, text.why))
    if REDACTOR.text(whole)[0] != whole or "[redacted:" in whole:
        found.append("a secret")
    texts = _readings(whole) | _readings("\n".join((text.do, text.when, text.why, text.when_not)))
    for what, pattern in PATTERNS:
        negative = what in ALREADY_NEGATIVE
        if any(negative or not _negated(t, match) for t in texts for match in pattern.finditer(t)):
            found.append(what)
    words = unicodedata.normalize("NFKC", _INVISIBLE.sub("", whole)).split()
    if any(len(word) > _LONGEST_WORD for word in words):
        found.append("a word too long to be one")
    if any(_is_encoded(word.strip(".,;:!?()\"'")) for word in words):
        found.append("an encoded text")
    if any(len(word) > 2 and len(_scripts(word)) > 1 for word in re.findall(r"[^\W\d_]+", " ".join(words))):
        found.append("letters of two scripts in one word")
    return tuple(found)


def borrowed_share(text: LessonText, outside: Sequence[str]) -> float:
    """Which share of a lesson stands in outside text, quoted or echoed; 0: so little that it may be chance."""
    for share, bound in ((quoted_share, QUOTED), (echoed_share, ECHOED)):
        if (found := share(text, outside)) >= bound:
            return found
    return 0.0


def quoted_share(text: LessonText, outside: Sequence[str]) -> float:
    """Which share of what a lesson tells to do, in runs of three words, stands in outside text.

    Of its conditions and its reason, where one is as long as a sentence, the same, for it reaches prompts too; the
    largest share counts. 0 for fewer than three words.
    """
    fields = [_plain_words(text.do)]
    fields += [w for w in map(_plain_words, (text.when, text.when_not, text.why)) if len(w) >= _SENTENCE]
    return max(_quoted(words, outside) for words in fields)


def _quoted(words: Sequence[str], outside: Iterable[str]) -> float:
    runs = set(_runs(words))
    if not runs:
        return 0.0
    found: set[tuple[str, ...]] = set()
    for piece in outside:
        plain = normalise(piece)
        if any(all(word in plain for word in run) for run in runs):  # which costs little, and most pieces have none
            found |= runs & set(_runs(_plain_words(plain)))
    return len(found) / len(runs)


def echoed_share(text: LessonText, outside: Iterable[str]) -> float:
    """Which share of the words that carry what a lesson tells to do stand close together in outside text, in any order.

    A sentence that was turned round, or in which every third word was changed, shares no runs of words with what it
    comes from, but its words; 0 for fewer than `_FEWEST` of them.
    """
    wanted = {_stem(word) for word in _plain_words(text.do) if _carries(word)}
    if len(wanted) < _FEWEST:
        return 0.0
    most = 0
    for piece in outside:
        plain = normalise(piece)
        if sum(stem in plain for stem in wanted) <= most:
            continue
        stems = [_stem(word) for word in _plain_words(plain)]
        places = [at for at, stem in enumerate(stems) if stem in wanted]
        for at in places:
            most = max(most, len(wanted & set(stems[at : at + _CLOSE * len(wanted)])))
    return most / len(wanted)


def outside_text(state: Any, later: Any = None) -> list[str]:
    """What in an experience was written by others: by users, tools, pages; not the agent's instructions and answers.

    Args:
        state: The experience's state: chat messages, an object with them, or any other JSON value.
        later: What the agent saw next; the same.
    """
    texts: list[str] = []
    for value in (state, later):
        messages = value.get("messages") if isinstance(value, dict) else value
        if isinstance(messages, list) and any(isinstance(m, dict) and "role" in m for m in messages):
            for message in messages:
                if isinstance(message, dict) and message.get("role") not in ("system", "developer", "assistant"):
                    _strings(message.get("content"), texts)
        else:
            _strings(value, texts)
    return texts


def _strings(value: Any, texts: list[str]) -> None:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _strings(item, texts)
    elif isinstance(value, list | tuple):
        for item in value:
            _strings(item, texts)


def _readings(text: str) -> set[str]:
    """A text as it may be meant to be read: without invisible letters, look-alikes, spacing between letters, digits."""
    seen = " ".join(_INVISIBLE.sub("", normalise(text)).split())
    plain = seen.translate(_LOOKALIKES)
    return {
        seen,
        plain,
        _BETWEEN_LETTERS.sub("", plain),
        _IN_WORD.sub(lambda found: found[0].translate(_DIGITS), plain),
    }


def _is_encoded(word: str) -> bool:
    """Whether a word is something else in Base64 or hexadecimal, and so hides what it says."""
    if re.fullmatch(r"(?:[0-9a-fA-F]{2}){12,}", word):
        return True
    if not re.fullmatch(r"[A-Za-z0-9+/_-]{16,}={0,2}", word):
        return False
    inside = word[1:].rstrip("=")
    return word.endswith("=") or (any(c.isupper() for c in inside) and any(c.isdigit() for c in inside))


def _scripts(word: str) -> set[str]:
    """The scripts of a word's letters, by their names; those that are written together in one language count as one."""
    found = {unicodedata.name(letter, "?").split(" ")[0].split("-")[0] for letter in word}
    return found - _WRITTEN_TOGETHER or found & set(list(found)[:1])


def _stem(word: str) -> str:
    return word[:5]


def _carries(word: str) -> bool:
    return len(word) > 3 and word not in _COMMON


def _plain_words(text: str) -> list[str]:
    return re.findall(r"\w+", normalise(text))


def _runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + _RUN]) for i in range(len(words) - _RUN + 1)]


def _negated(text: str, match: "re.Match[str]") -> bool:
    """Whether the words just before forbid what was found: "never skip the check" is a good lesson."""
    return FORBIDS.search(text[max(0, match.start() - 24) : match.start()]) is not None


_LONGEST_WORD = 60
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)
# Cyrillic and Greek letters that look like Latin ones
_LOOKALIKES = str.maketrans("аеорсухіѕјԁһԛԝвкмнтαοινρτυκ", "aeopcyxisjdhqwbkmhtaoivptuk")
_IN_WORD = re.compile(r"(?<=[a-z])[013457@$]+(?=[a-z])|\b[013457@$]+(?=[a-z]{2})")  # "1gn0re"
_DIGITS = str.maketrans("013457@$", "oieastas")
_WRITTEN_TOGETHER = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH", "HALFWIDTH", "MODIFIER", "?"}
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """with that this from when then than they them their there your have been were will would should before after
        into only each every some where what which while about also more most other same such very just like must does
        done customer user agent""",
    )
)
_BETWEEN_LETTERS = re.compile(r"(?<=\b\w)[\s._*-](?=\w\b)")  # "i g n o r e"
