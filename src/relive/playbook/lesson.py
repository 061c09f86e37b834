"""A lesson, and the typed changes that may be made to a book of them.

A lesson says when it applies, when not, what to do and why (ReasoningBank's form). It is data: nothing in it is ever
run, and it reaches a prompt only inside a marked block. Changes are typed deltas (ACE, arXiv 2510.04618) that code
applies; a model may propose some of them (`Proposal`), but it never rewrites the book, and it cannot approve.
"""

import unicodedata
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from relive.errors import ReliveError

Status = Literal["candidate", "active", "retired", "quarantined"]
STATUSES: tuple[Status, ...] = ("candidate", "active", "retired", "quarantined")
"""In the order of the numbers that the store holds."""

Origin = Literal["contrast", "model", "person", "import"]
"""Who wrote a lesson: statistics over experiences, a language model, a person, a file."""

DEFAULT_TENANT = "default"

TITLE_LENGTH, FIELD_LENGTH = 120, 600
"""Characters that are kept of a title, and of each other field."""


class InvalidLessonError(ReliveError, ValueError):
    """A lesson or a delta does not have the right shape, or names a lesson that is not there."""


class LessonText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a lesson says; longer texts are cut with an ellipsis when it is made.

    Attributes:
        do: What to do.
        when: In which situations; empty: always.
        when_not: Where it must not be applied; empty: nowhere.
        why: What it rests on.
        title: A few words to recognise it by; empty: made of `do`.

    Raises:
        InvalidLessonError: `do` says nothing.
    """

    do: str
    when: str = ""
    when_not: str = ""
    why: str = ""
    title: str = ""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = TITLE_LENGTH if name == "title" else FIELD_LENGTH
            msgspec.structs.force_setattr(self, name, _one_line(getattr(self, name), limit))
        if not self.do:
            raise InvalidLessonError("A lesson must say what to do; its field do is empty.")
        if not self.title:
            msgspec.structs.force_setattr(self, "title", _one_line(self.do, 60))


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks for a lesson, or against it.

    Attributes:
        ref: Its name, such as ``experience:12`` or a line of a file; the same name counts once.
        by: Whose experience it is: an agent or a person. Only different ones are independent of each other.
        experience_id: The experience; ``None``: it is none.
        episode_id: Its episode.
        counts: Whether it is support; ``False``: it only says where the lesson comes from, so that a rollback finds it.
    """

    ref: Annotated[str, Meta(min_length=1)]
    by: str = ""
    experience_id: int | None = None
    episode_id: str | None = None
    counts: bool = True


class Uplift(NamedTuple):
    """What a lesson is worth, in points of success divided by 100; see `uplift.Interval`.

    Attributes:
        estimate: The uplift; 0 without calls.
        low: Lower end of its interval, at least -1.
        high: Upper end, at most 1.
        error: Standard error of the estimate.
    """

    estimate: float
    low: float
    high: float
    error: float


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """A lesson as it stands in a book.

    Attributes:
        id: Its id; never given again.
        version: Counts the changes of its text, from 1.
        text: What it says.
        status: ``candidate``: waits for support or approval; ``active``: is put into prompts; ``retired``: it was, or
            was not good enough; ``quarantined``: looks dangerous, a person must decide.
        reason: Why it has this status, in one sentence; empty: nothing is to be said.
        agent: Whose lesson it is; ``None``: shared by all agents.
        tenant: To whom the book belongs.
        origin: Who wrote it.
        support: Sources that speak for it.
        opposed: Sources that speak against it.
        uses: Episodes that were shown it.
        proved: Its uplift was proved to be above 0.
        calls: Eligible episodes with a known outcome.
        uplift: What it is worth; without calls 0, from -1 to 1.
        created_at: When it was added, UTC.
        updated_at: When it was changed last, UTC.
    """

    id: int
    version: int
    text: LessonText
    status: Status
    reason: str
    agent: str | None
    tenant: str
    origin: Origin
    support: int
    opposed: int
    uses: int
    proved: bool
    calls: int
    uplift: Uplift
    created_at: datetime
    updated_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """The lesson as JSON values."""
        result: dict[str, Any] = msgspec.to_builtins(self)
        result["uplift"] = self.uplift._asdict()
        return result


class Add(msgspec.Struct, frozen=True, kw_only=True, tag_field="change", tag="add"):
    """Adds a lesson; where the book has it already, or one nearly the same, its sources are added to that one's.

    Attributes:
        text: What it says.
        agent: Whose; ``None``: shared by all.
        sources: What speaks for it.
        origin: Who wrote it.
    """

    text: LessonText
    agent: str | None = None
    sources: tuple[Source, ...] = ()
    origin: Origin = "model"


class Edit(msgspec.Struct, frozen=True, kw_only=True, tag_field="change", tag="edit"):
    """Changes what a lesson says. It is another treatment then: what was measured counts for the old text only.

    Attributes:
        lesson: Its id.
        text: What it says from now on.
    """

    lesson: int
    text: LessonText


class Merge(msgspec.Struct, frozen=True, kw_only=True, tag_field="change", tag="merge"):
    """Gives a lesson the sources of another, and retires the other.

    Attributes:
        lesson: The one that stays.
        other: The one that goes.
    """

    lesson: int
    other: int


class Vote(msgspec.Struct, frozen=True, kw_only=True, tag_field="change", tag="vote"):
    """Says that an experience speaks for a lesson or against it (ExpeL, arXiv 2308.10144).

    Attributes:
        lesson: Its id.
        source: The experience.
        up: For it.
    """

    lesson: int
    source: Source
    up: bool = True


class Retire(msgspec.Struct, frozen=True, kw_only=True, tag_field="change", tag="retire"):
    """Takes a lesson out of use; it stays in the book, so that it is not learnt again.

    Attributes:
        lesson: Its id.
        reason: Why, in one sentence.
    """

    lesson: int
    reason: str = ""


class Approve(msgspec.Struct, frozen=True, kw_only=True, tag_field="change", tag="approve"):
    """Puts a lesson into use, whatever its status. For people only.

    Attributes:
        lesson: Its id.
    """

    lesson: int


class Quarantine(msgspec.Struct, frozen=True, kw_only=True, tag_field="change", tag="quarantine"):
    """Sets a lesson aside until a person has looked at it.

    Attributes:
        lesson: Its id.
        reason: Why, in one sentence.
    """

    lesson: int
    reason: str


Proposal: TypeAlias = Add | Edit | Merge | Vote | Retire
"""What a model may propose."""

Delta: TypeAlias = Proposal | Approve | Quarantine


def read_proposal(value: object) -> Proposal:
    """A delta that a model proposes, from its JSON value; every field is checked.

    Raises:
        InvalidLessonError: it is none, or one that only people may make.
    """
    try:
        proposal: Proposal = msgspec.convert(value, Proposal)
    except msgspec.ValidationError as error:
        raise InvalidLessonError(f"Not a change that may be proposed: {error}") from error
    return proposal


def _one_line(text: str, limit: int) -> str:
    """A text without line breaks and control characters, at most so long."""
    if text.isprintable():  # which letters that nobody sees are not
        line = " ".join(text.split())
        return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
    visible = (c for c in text[: 4 * limit] if unicodedata.category(c) != "Cf")
    line = " ".join("".join(c if c.isprintable() else " " for c in visible).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
