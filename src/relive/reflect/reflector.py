"""`Reflector`: a language model looks at experiences and proposes lessons; code checks and applies them.

A cheap model does the routine work, request by request: it compares attempts at one task where there are several, and
looks at each trajectory otherwise. Where there is a strong model too, it gets what the cheap one proposed, all of it
together, and decides what holds; if it fails, the cheap one's proposals stand.

What holds here: nothing is sent that could go beyond the caps (`spending`); an error of one request is reported and the
others go on; what experiences say is data between marks, in lines that cannot leave them; a proposal can only touch
lessons that the model was shown, and what repeats outside text goes to quarantine. A model proposes, the book's own
rules decide, and a lesson of a model is a candidate like any other.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from relive.experience import Transition
from relive.llm import ContextOverflowError, Upstream, UpstreamError
from relive.playbook.book import Playbook
from relive.playbook.changes import Applied
from relive.playbook.injection import as_notes
from relive.playbook.lesson import Add, Delta, Edit, InvalidLessonError, Lesson, LessonText, Merge, Retire, Source, Vote
from relive.playbook.recall import estimate_tokens
from relive.playbook.trust import borrowed_share, echoed_share, outside_text, quoted_share
from relive.reflect import prompts
from relive.reflect.asking import Asked, Asker, CapReachedError, Try
from relive.reflect.chunking import MOST, Piece, pack, size
from relive.reflect.contrast import ENOUGH
from relive.reflect.replies import deltas
from relive.reflect.spending import Spending
from relive.reflect.trajectory import Trajectory, chosen, trajectories
from relive.storage.text import state_text

MAX_TOKENS = 200_000
"""Tokens that a run may use where no caps are given."""

WINDOW = 16_384
"""Tokens of prompt and answer together that a model is taken to have where nothing is said."""

_BOOK_TOKENS = 600  # of lessons of the book that a request shows
_LESSONS = 12  # of them at most
_LEAST = 200  # tokens of episodes below which a request makes no sense
_DRAFTS = 60  # proposals that the strong model is shown at once


class Reflection(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    Attributes:
        experiences: Experiences with a known outcome that there were.
        trajectories: Episodes, or parts of long ones, that a model answered about.
        requests: Requests that were planned for them.
        left: Requests that were not made because of a cap.
        applied: What became of each change that was proposed.
        problems: What went wrong or was left out, one sentence each.
        tries: Each call, with its tokens, its cost, and of a reply that could not be used its head and tail.
        analysis: What the models said about the episodes.
        tokens: Tokens that were used.
        assumed: Those of them that no server counted.
        cost: In nano-USD; ``None``: a price is not known.
        reason: Why nothing was asked, or not all; empty: all was.
    """

    experiences: int = 0
    trajectories: int = 0
    requests: int = 0
    left: int = 0
    applied: tuple[Applied, ...] = ()
    problems: tuple[str, ...] = ()
    tries: tuple[Try, ...] = ()
    analysis: tuple[str, ...] = ()
    tokens: int = 0
    assumed: int = 0
    cost: int | None = 0
    reason: str = ""


class _Draft(msgspec.Struct, frozen=True):
    """A change that the cheap model proposed, and what it was shown."""

    delta: Delta
    seen: tuple[Trajectory, ...]


class Reflector:
    """Lets a model reflect on the experiences of a store.

    Args:
        book: The book; its store holds the experiences.
        model: Does the routine analysis.
        strong: Judges what that one proposed; ``None``: its proposals are applied as they are.
        spending: The caps of all runs of this object together; ``None``: `MAX_TOKENS` tokens, and no limit in money.
        window: Tokens of prompt and answer together; a request that proves too long is made smaller.
        answer_tokens: How long an answer may be.
        experiences: At most so many episodes, the ones most worth it (`trajectory.priorities`).
        chunk: At most so many in one request.

    Raises:
        ValueError: a number is too small.
    """

    def __init__(
        self,
        book: Playbook,
        model: Upstream,
        *,
        strong: Upstream | None = None,
        spending: Spending | None = None,
        window: int = WINDOW,
        answer_tokens: int = 1_500,
        experiences: int = 100,
        chunk: int = MOST,
    ) -> None:
        if min(answer_tokens, experiences, chunk) < 1:
            raise ValueError("answer_tokens, experiences and chunk must be at least 1.")
        self.book = book
        self.spending = spending or Spending(MAX_TOKENS)
        self.experiences = experiences
        self.chunk = chunk
        self._model, self._strong = model, strong
        self._answer_tokens = answer_tokens
        self._room = window - 2 * answer_tokens - estimate_tokens(prompts.ANALYSE) - _BOOK_TOKENS - 50
        if self._room < _LEAST:
            raise ValueError(
                f"A window of {window:,} tokens leaves no room for experiences beside the instructions and an answer "
                f"of {answer_tokens:,} tokens; use a model with a larger one, or allow a shorter answer."
            )

    def plan(self, agent: str | None = None) -> Reflection:
        """What a run would look at, without asking anybody."""
        return self._planned(agent)[0]

    def run(self, agent: str | None = None) -> Reflection:
        """Reflects, and applies what is proposed.

        Args:
            agent: Only this agent's experiences.

        Raises:
            UnknownPriceError: there is a cap in money, and a model's price is not known; nothing was asked.
        """
        planned, chunks = self._planned(agent)
        if planned.reason:
            return planned
        run = _Run(self.book, self.spending, list(planned.problems), self._answer_tokens)
        left, reason = 0, ""
        cheap = run.asker(self._model)
        queue, room = deque(chunks), self._room
        drafts: list[_Draft] = []
        while queue:
            chunk = queue.popleft()
            if size(chunk) > room and len(chunk) > 1:
                queue.extendleft(reversed(run.smaller(chunk, room, self.chunk)))
                continue
            try:
                drafts += run.analyse(cheap, chunk)
            except CapReachedError as error:
                left, reason = len(queue) + 1, str(error)
                break
            except ContextOverflowError as error:
                room = min(room, size(chunk)) // 2
                if room < _LEAST:
                    run.problem(f"A request about {_named(chunk)} is too long for the model: {error}")
                    continue
                queue.extendleft(reversed(run.smaller(chunk, room, self.chunk)))
            except UpstreamError as error:
                run.problem(f"The request about {_named(chunk)} failed: {error}")
        if self._strong is not None and drafts:
            drafts = run.judge(run.asker(self._strong), drafts, self._room)
        run.apply(drafts)
        return run.report(planned, left, reason)

    def _planned(self, agent: str | None) -> tuple[Reflection, list[list[Piece]]]:
        self.spending.check(self._model, self._strong)
        found = trajectories(self.book.storage, agent=agent, distrusted=self.book.all_distrusted())
        count = sum(len(one.experiences) for one in found)
        if self.book.trust.autonomy == 1:
            return Reflection(experiences=count, reason="Autonomy 1 only records: lessons are written by people."), []
        if count < ENOUGH:
            reason = (
                f"Insufficient data: there are {count} experiences with a known outcome, and at least {ENOUGH} are "
                "needed. Nothing was asked."
            )
            return Reflection(experiences=count, reason=reason), []
        chunks, problems = pack(chosen(found, self.experiences), self._room_within_cap(), most=self.chunk)
        return Reflection(experiences=count, requests=len(chunks), problems=tuple(problems)), chunks

    def _room_within_cap(self) -> int:
        """Tokens of episodes in a request, so that at least one fits under the cap in tokens."""
        cap = self.spending.max_tokens
        if cap is None:
            return self._room
        tries = self._model.policy.max_attempts
        frame = 4 * (estimate_tokens(prompts.ANALYSE) + _BOOK_TOKENS) + 2_000  # bytes, with the schema of the answer
        return max(min(self._room, (cap // tries - self._answer_tokens - frame) // 4), _LEAST)


class _Run:
    """One run under way."""

    def __init__(self, book: Playbook, spending: Spending, problems: list[str], answer_tokens: int) -> None:
        self.book = book
        self.spending = spending
        self.problems = problems
        self.answer_tokens = answer_tokens
        self.askers: list[Asker] = []
        self.applied: list[Applied] = []
        self.analysis: list[str] = []
        self.seen = 0
        self._before = spending.tokens, spending.assumed, spending.cost, spending.unknown

    def asker(self, model: Upstream) -> Asker:
        """Who is asked: the first is the cheap one."""
        tier = "strong" if self.askers else "cheap"
        self.askers.append(Asker(model, tier, self.spending, answer_tokens=self.answer_tokens, keep=self._keep))
        return self.askers[-1]

    def problem(self, sentence: str) -> None:
        """Notes that something went wrong."""
        self.problems.append(sentence)

    def smaller(self, chunk: Sequence[Piece], room: int, most: int) -> list[list[Piece]]:
        """The same trajectories in smaller chunks."""
        chunks, problems = pack([[piece.trajectory for piece in chunk]], room, most=most)
        self.problems += problems
        return chunks

    def analyse(self, asker: Asker, chunk: Sequence[Piece]) -> list[_Draft]:
        """What the cheap model proposes about a chunk."""
        seen = tuple(piece.trajectory for piece in chunk)
        agent = seen[0].agent
        lessons = self._lessons(" ".join(state_text(list(one.messages))[:200] for one in seen), agent)
        asked = asker.ask(prompts.analyse(chunk, lessons), agent=agent, experiences=[one.experience for one in seen])
        evidence = {at: (_source(one.experience),) for at, one in enumerate(seen, 1)}
        if asked.answer is not None:
            self.seen += len(seen)
        return self._drafts(asked, f"about {_named(chunk)}", agent, evidence, lessons, seen)

    def judge(self, asker: Asker, drafts: list[_Draft], room: int) -> list[_Draft]:
        """What the strong model makes of the cheap one's proposals; they stand where it gives no answer."""
        result = [draft for draft in drafts if isinstance(draft.delta, Vote)]
        for some in _by_agent(drafts, room):
            agent = some[0].seen[0].agent
            seen = tuple({one.experience: one for draft in some for one in draft.seen}.values())
            named = {number for draft in some for number in _touched(draft.delta)}
            lessons = self._lessons(" ".join(_words(draft.delta) for draft in some), agent, named)
            evidence = {at: _sources(draft) for at, draft in enumerate(some, 1)}
            prompt = prompts.judge([describe(draft.delta) for draft in some], seen, lessons)
            about = f"about {len(some)} proposals"
            try:
                asked = asker.ask(prompt, agent=agent, experiences=[one.experience for one in seen])
            except (CapReachedError, UpstreamError) as error:
                asked = Asked(None, None, str(error))
            if asked.answer is None:
                self.problem(f"The strong model did not judge {len(some)} proposals, which stand as they are.")
                result += some
            result += self._drafts(asked, about, agent, evidence, lessons, seen)
        return result

    def apply(self, drafts: Sequence[_Draft]) -> None:
        """Applies proposals one by one; one that cannot be is reported."""
        for draft in drafts:
            try:
                delta = _guarded(draft)
                who = f"reflection by {', '.join(asker.model.model for asker in self.askers)}"[:200]
                self.applied += self.book.apply([delta], who=who)
            except InvalidLessonError as error:
                self.problem(f"A proposal was left out: {error}")

    def report(self, planned: Reflection, left: int, reason: str) -> Reflection:
        """What the run came to."""
        tokens, assumed, cost, unknown = self._before
        known = self.spending.unknown == unknown
        return msgspec.structs.replace(
            planned,
            trajectories=self.seen,
            left=left,
            applied=tuple(self.applied),
            problems=tuple(self.problems),
            tries=tuple(one for asker in self.askers for one in asker.tries),
            analysis=tuple(self.analysis),
            tokens=self.spending.tokens - tokens,
            assumed=self.spending.assumed - assumed,
            cost=self.spending.cost - cost if known else None,
            reason=reason,
        )

    def _drafts(
        self,
        asked: Asked,
        about: str,
        agent: str,
        evidence: Mapping[int, Sequence[Source]],
        lessons: Sequence[Lesson],
        seen: tuple[Trajectory, ...],
    ) -> list[_Draft]:
        if asked.problem:
            kept = "" if asked.record is None else f" The reply is kept as experience {asked.record}."
            self.problem(f"The reply {about} could not be used as it was: {asked.problem}{kept}")
        if asked.answer is None:
            return []
        if asked.answer.analysis:
            self.analysis.append(asked.answer.analysis)
        # the reply is where it comes from, so that a rollback finds it, but nothing that was lived through
        also = (
            ()
            if asked.record is None
            else (Source(ref=f"reply:{asked.record}", experience_id=asked.record, counts=False),)
        )
        shown = frozenset(one.id for one in lessons)
        proposed = deltas(asked.answer, agent=agent, evidence=evidence, also=also, shown=shown)
        self.problems += proposed.problems
        return [_Draft(delta, seen) for delta in proposed.deltas]

    def _lessons(self, text: str, agent: str, named: set[int] | None = None) -> list[Lesson]:
        """The lessons of the book that a request shows: those named, then the nearest, within their budget."""
        found = [self.book.get(number) for number in sorted(named or ())]
        near = self.book.search(text, agent=agent, status=None, limit=2 * _LESSONS, general=True)
        found += [one.lesson for one in near if one.lesson.status in ("candidate", "active")]
        result: dict[int, Lesson] = {}
        left = _BOOK_TOKENS
        for lesson in found:
            tokens = estimate_tokens(prompts.lesson_line(lesson))
            if lesson.id not in result and tokens <= left and len(result) < _LESSONS:
                result[lesson.id] = lesson
                left -= tokens
        return list(result.values())

    def _keep(self, record: Transition) -> int | None:
        return self.book.storage.append([record], priorities=[0.0])[0]  # it is never drawn


def describe(delta: Delta) -> str:
    """A change as one line."""
    if isinstance(delta, Add):
        return f"add: {_text(delta.text)}"
    if isinstance(delta, Edit):
        return f"edit lesson {delta.lesson}: {_text(delta.text)}"
    if isinstance(delta, Merge):
        return f"merge lesson {delta.other} into lesson {delta.lesson}"
    if isinstance(delta, Retire):
        return f"retire lesson {delta.lesson}: {delta.reason}"
    return f"{type(delta).__name__.lower()} lesson {delta.lesson}"


def _guarded(draft: _Draft) -> Delta:
    """The change with what its words were taken from as its sources, so that the book sees it.

    Raises:
        InvalidLessonError: a text of outside would replace a lesson's.
    """
    delta = draft.delta
    if not isinstance(delta, Add | Edit):
        return delta
    outside = {one.experience: outside_text(list(one.messages)) for one in draft.seen}
    if not borrowed_share(delta.text, [text for texts in outside.values() for text in texts]):
        return delta
    if isinstance(delta, Edit):
        raise InvalidLessonError(
            f"it would write into lesson {delta.lesson} what its episodes were given from outside."
        )
    share = {n: max(quoted_share(delta.text, texts), echoed_share(delta.text, texts)) for n, texts in outside.items()}
    first = [_source(number) for number in sorted(share, key=lambda n: -share[n]) if share[number]]
    return msgspec.structs.replace(delta, sources=tuple(dict.fromkeys([*first, *delta.sources])))


def _by_agent(drafts: Sequence[_Draft], room: int) -> list[list[_Draft]]:
    """Drafts for the strong model in requests that fit; votes need no judgement."""
    result: list[list[_Draft]] = []
    used: dict[str, int] = {}
    open_: dict[str, list[_Draft]] = {}
    for draft in drafts:
        if isinstance(draft.delta, Vote):
            continue
        agent, tokens = draft.seen[0].agent, estimate_tokens(as_notes(describe(draft.delta))) + 5
        if agent not in open_ or used[agent] + tokens > room or len(open_[agent]) >= _DRAFTS:
            open_[agent], used[agent] = [], 0
            result.append(open_[agent])
        open_[agent].append(draft)
        used[agent] += tokens
    return result


def _sources(draft: _Draft) -> tuple[Source, ...]:
    return draft.delta.sources if isinstance(draft.delta, Add) else tuple(_source(t.experience) for t in draft.seen)


def _touched(delta: Delta) -> tuple[int, ...]:
    if isinstance(delta, Add):
        return ()
    return (delta.lesson, delta.other) if isinstance(delta, Merge) else (delta.lesson,)


def _words(delta: Delta) -> str:
    return f"{delta.text.when} {delta.text.do}" if isinstance(delta, Add | Edit) else ""


def _text(text: LessonText) -> str:
    parts = (f"when {text.when}" if text.when else "", text.do, f"not when {text.when_not}" if text.when_not else "")
    return "; ".join(part for part in (*parts, f"why: {text.why}" if text.why else "") if part)


def _source(number: int) -> Source:
    return Source(ref=f"experience:{number}", experience_id=number)


def _named(chunk: Sequence[Piece]) -> str:
    numbers = [piece.trajectory.experience for piece in chunk]
    return f"experience {numbers[0]}" + (f" and {len(numbers) - 1:,} others" if len(numbers) > 1 else "")
