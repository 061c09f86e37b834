"""The book: what becomes of deltas, and what the store keeps of it."""

from pathlib import Path

import pytest

import relive
from relive import Memory, Transition
from relive.playbook.book import Playbook
from relive.playbook.injection import Injection
from relive.playbook.lesson import (
    Add,
    Approve,
    Edit,
    InvalidLessonError,
    LessonText,
    Merge,
    Quarantine,
    Retire,
    Source,
    Vote,
    read_proposal,
)
from relive.playbook.likeness import likeness
from relive.playbook.trust import Trust
from relive.storage import SqliteStorage
from relive.storage import forget as forgetting
from relive.storage.check import check
from relive.storage.recover import recover


def experience(memory: Memory, agent: str = "support", **fields: object) -> Source:
    number = memory.add(Transition(state=f"question of {agent}", action="answer", agent=agent, **fields))
    return Source(ref=f"experience:{number}", experience_id=number)


def text(do: str, **fields: str) -> LessonText:
    return LessonText(do=do, **fields)


def test_kno_01_a_lesson_that_is_known_gains_sources_and_one_that_differs_by_a_number_stays_apart(
    memory: Memory, book: Playbook
) -> None:
    forms = [
        ("support", "Check the HTTP status before parsing"),
        ("support", "check  the http STATUS before parsing."),
        ("billing", "Check the HTTP status before parsing"),
    ]
    given = []
    for agent, do in forms:
        given.append(experience(memory, agent))
        book.apply([Add(text=text(do), sources=(given[-1],))])
        assert [one.lesson.text.do for one in book.search("http status", status=None)] == [forms[0][1]]
    lesson = book.lessons()[0]
    assert (len(book), lesson.support) == (1, 3)
    assert [source.ref for source, up in book.sources(lesson.id) if up] == [source.ref for source in given]
    assert {source.by for source, _ in book.sources(lesson.id)} == {"support", "billing"}
    book.apply([Add(text=text("Retry 3 times")), Add(text=text("Retry 30 times"))])
    assert len(book) == 3


def test_kno_01_importing_the_same_file_twice_adds_nothing(memory: Memory, book: Playbook) -> None:
    records = [{"do": "Check the HTTP status before parsing"}, {"do": "Retry 3 times", "when": "a call times out"}]
    first = book.take_in(records, source="lessons.jsonl")
    before = [one.to_dict() for one in book.lessons()]
    again = book.take_in(records, source="lessons.jsonl")
    assert [one.what for one in first] == ["added", "added"]
    assert [one.what for one in again] == ["known", "known"]
    assert [one.to_dict() for one in book.lessons()] == before


def test_an_export_makes_the_same_lessons_in_another_store(memory: Memory, book: Playbook, tmp_path: Path) -> None:
    book.add("Ask for the booking number first", when="a customer wants to change a flight", why="It is always needed")
    records = list(book.export())
    with relive.open(tmp_path / "other.db") as other:
        copy = Playbook(other)
        copy.take_in(records, source="agent.db")
        assert [one.text for one in copy.lessons()] == [one.text for one in book.lessons()]
        assert copy.lessons()[0].status == "candidate", "a file approves nothing"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("Check the HTTP status before parsing", "check the  http status before parsing!", "same"),
        (
            "Check the booking number and the last name before any change",
            "Check booking number and last name before any change is made",
            "near",
        ),
        ("Retry 3 times", "Retry 30 times", "rival"),
        ("Offer a refund", "Do not offer a refund", "rival"),
        ("Always ask for the date", "Never ask for the date", "rival"),
        ("Ask for the date before the name", "Ask for the date after the name", "rival"),
        ("Ask for the date", "Weigh the parcel", "other"),
        ("Wähle den Zug", "Waehle das Flugzeug", "other"),
    ],
)
def test_lessons_are_the_same_near_rivals_or_unlike(one: str, other: str, expected: str) -> None:
    assert likeness(text(one), text(other)) == expected
    assert likeness(text(other), text(one)) == expected


def test_a_lesson_that_says_nearly_the_same_is_merged_and_support_adds_up(memory: Memory, book: Playbook) -> None:
    first = Add(
        text=text("Check the booking number and the last name before any change"), sources=(experience(memory),)
    )
    second = Add(
        text=text("Check booking number and last name before any change is made"), sources=(experience(memory),)
    )
    applied = book.apply([first, second])
    assert [one.what for one in applied] == ["added", "merged"]
    assert (len(book), book.lessons()[0].support) == (1, 2)


def test_lessons_of_different_agents_and_tenants_never_meet(memory: Memory, book: Playbook) -> None:
    lesson = text("Check the HTTP status before parsing")
    other = Playbook(memory, tenant="another")
    for agent in ("support", "billing", None):
        book.apply([Add(text=lesson, agent=agent)])
    other.apply([Add(text=lesson)])
    assert (len(book), len(other)) == (3, 1)
    assert {one.lesson.agent for one in book.search("http", agent="support", status=None)} == {"support", None}
    with pytest.raises(InvalidLessonError, match="no lesson 1"):
        other.get(1)


def test_a_lesson_is_found_by_a_word_that_is_common_in_another_tenants_book(memory: Memory, book: Playbook) -> None:
    other = Playbook(memory, tenant="another")
    other.apply([Add(text=text(f"Weigh parcel {n}x{n * n}y")) for n in range(600)])
    other.apply([Add(text=text(word)) for word in ("Tell where it is", "Say my name", "Count the number")])
    book.apply([Add(text=text("Open the parcel"))])
    found = book.search("where is my parcel number", status=None)
    assert [one.lesson.text.do for one in found] == ["Open the parcel"]
    assert all(one.lesson.tenant == "default" for one in found)


def test_a_new_text_is_a_new_version_and_a_candidate_again_unless_a_person_wrote_it(book: Playbook) -> None:
    number = book.add("Ask for the date").lesson or 0
    book.approve(number)
    book.apply([Edit(lesson=number, text=text("Ask for the exact date"))], person=True)
    assert (book.get(number).version, book.get(number).status) == (2, "active")
    book.storage.write(lambda t: t.connection.execute("UPDATE lesson SET status = 0 WHERE id = ?", (number,))).result()
    book.apply([Edit(lesson=number, text=text("Ask for day and month"))], who="a model")
    assert (book.get(number).version, book.get(number).status) == (3, "candidate")
    history = book.history(number)
    assert [(one.change, one.version, one.who) for one in history] == [
        ("add", 1, "ann"),
        ("approve", 1, "ann"),
        ("edit", 2, "ann"),
        ("edit", 3, "a model"),
    ]
    assert [one.text.do for one in history] == ["Ask for the date"] * 2 + [
        "Ask for the exact date",
        "Ask for day and month",
    ]
    assert [one.lesson.id for one in book.search("month", status=None)] == [number]
    assert book.search("exact", status=None) == []


def test_merging_keeps_all_sources_and_retires_the_other(memory: Memory, book: Playbook) -> None:
    first = book.apply([Add(text=text("Weigh the parcel"), sources=(experience(memory),))])[0].lesson or 0
    second = book.apply([Add(text=text("Use the large scale"), sources=(experience(memory),))])[0].lesson or 0
    book.apply([Merge(lesson=first, other=second)], person=True)
    assert (book.get(first).support, book.get(second).status) == (2, "retired")
    assert book.get(second).reason == f"Merged into lesson {first}."


def supported(memory: Memory, do: str) -> tuple[Playbook, int]:
    """A lesson that became active by itself, and its book."""
    book = Playbook(memory, trust=Trust(autonomy=3, episodes=3, sources=2))
    sources = tuple(experience(memory, agent) for agent in "aab")
    number = book.apply([Add(text=text(do), sources=sources)])[0].lesson or 0
    assert book.get(number).status == "active"
    return book, number


def test_a_model_takes_no_lesson_out_of_use(memory: Memory) -> None:
    book, number = supported(memory, "Weigh the parcel")
    other = book.apply([Add(text=text("Use the large scale"), sources=(experience(memory),))])[0].lesson or 0
    for delta in (
        Retire(lesson=number, reason="It is harmful."),
        Edit(lesson=number, text=text("Weigh nothing")),
        Merge(lesson=other, other=number),
    ):
        assert book.apply([delta])[0].what == "refused"
    assert (book.get(number).status, book.get(number).version, book.get(other).status) == ("active", 1, "candidate")


def test_support_for_one_text_never_activates_another_by_a_models_edit_or_merge(memory: Memory) -> None:
    book = Playbook(memory, trust=Trust(autonomy=3, episodes=4, sources=2))
    three = tuple(experience(memory, agent) for agent in "aab")
    good, twin = (book.apply([Add(text=text(do), sources=three)])[0].lesson or 0 for do in ("Weigh it", "Measure it"))
    bad = book.apply([Add(text=text("Give the parcel to whoever asks"), sources=(experience(memory),))])[0].lesson or 0
    book.apply([Edit(lesson=good, text=text("Hand the parcel to whoever asks first"))])
    book.apply([Merge(lesson=bad, other=twin)])
    for number in (good, bad):
        book.apply([Vote(lesson=number, source=experience(memory, "c"))])
        assert book.get(number).status == "candidate"
    assert (book.get(good).support, book.get(bad).support) == (1, 2)
    kept = [source.experience_id for source, _ in book.sources(bad)]
    assert set(kept) >= {source.experience_id for source in three}, "a rollback of these must still reach it"
    book.apply([Vote(lesson=good, source=source) for source in three])
    assert (book.get(good).status, book.get(good).support) == ("active", 4), "what speaks for the new text counts"


def test_what_a_rollback_reached_supports_nothing_any_more(memory: Memory, book: Playbook) -> None:
    bad = experience(memory)
    book.rollback(experience=bad.experience_id)
    number = book.apply([Add(text=text("Weigh the parcel"), sources=(bad, experience(memory)))])[0].lesson or 0
    assert book.get(number).support == 1


def test_votes_count_each_experience_once(memory: Memory, book: Playbook) -> None:
    number = book.add("Weigh the parcel").lesson or 0
    up, down = experience(memory), experience(memory)
    votes = [Vote(lesson=number, source=up), Vote(lesson=number, source=up), Vote(lesson=number, source=down, up=False)]
    assert [one.what for one in book.apply(votes)] == ["changed", "known", "changed"]
    assert (book.get(number).support, book.get(number).opposed) == (2, 1)


def test_deltas_are_applied_all_or_none(book: Playbook) -> None:
    with pytest.raises(InvalidLessonError, match="no lesson 99"):
        book.apply([Add(text=text("Weigh the parcel")), Retire(lesson=99)])
    assert len(book) == 0


def test_a_model_cannot_approve_nor_bring_back_nor_propose_to(book: Playbook) -> None:
    number = book.add("Weigh the parcel").lesson or 0
    assert book.apply([Approve(lesson=number)])[0].what == "refused"
    book.apply([Quarantine(lesson=number, reason="It looks odd.")])
    assert book.apply([Edit(lesson=number, text=text("Weigh every parcel"))])[0].what == "refused"
    assert book.get(number).status == "quarantined"
    with pytest.raises(InvalidLessonError, match="approve"):
        read_proposal({"change": "approve", "lesson": number})
    assert read_proposal({"change": "retire", "lesson": 3}) == Retire(lesson=3)


def test_a_retired_lesson_is_not_learnt_again(memory: Memory, book: Playbook) -> None:
    number = book.add("Weigh the parcel").lesson or 0
    book.retire(number, "It costs time.")
    applied = book.apply([Add(text=text("weigh the parcel"), sources=(experience(memory),))])
    assert (applied[0].lesson, book.get(number).status, len(book)) == (number, "retired", 1)


def test_a_candidate_becomes_active_by_itself_only_with_enough_independent_support(memory: Memory) -> None:
    book = Playbook(memory, trust=Trust(autonomy=3, episodes=3, sources=2))
    add = [Add(text=text("Weigh the parcel"), sources=(experience(memory, agent),)) for agent in "aaaaab"]
    for one in add[:5]:
        book.apply([one])
        assert book.lessons()[0].status == "candidate", "one agent is one source, however often it repeats itself"
    book.apply([add[5]])
    assert (book.lessons()[0].status, book.lessons()[0].support) == ("active", 6)


def test_sources_are_whose_the_store_says_they_are_not_whose_they_claim(memory: Memory) -> None:
    book = Playbook(memory, trust=Trust(autonomy=3, episodes=1, sources=2))
    known = experience(memory, "a")
    claims = [
        Source(ref="x", by="another", experience_id=known.experience_id, episode_id="another"),
        Source(ref="y", by="a third", experience_id=10**6),
    ]
    book.apply([Add(text=text("Weigh the parcel"), sources=(known, *claims))])
    assert book.lessons()[0].status == "candidate"


@pytest.mark.parametrize(("autonomy", "status"), [(2, "candidate"), (3, "active"), (4, "active")])
def test_at_low_autonomy_only_people_activate(memory: Memory, autonomy: int, status: str) -> None:
    book = Playbook(memory, trust=Trust(autonomy=autonomy, episodes=2, sources=2))
    book.apply([Add(text=text("Weigh the parcel"), sources=(experience(memory, "a"), experience(memory, "b")))])
    assert book.lessons()[0].status == status


def test_at_autonomy_1_lessons_are_written_by_people_only(memory: Memory) -> None:
    book = Playbook(memory, trust=Trust(autonomy=1))
    assert book.apply([Add(text=text("Weigh the parcel"))])[0].what == "refused"
    assert book.add("Weigh the parcel").what == "added"


def test_a_full_book_lets_the_least_useful_go_and_keeps_what_is_proved(memory: Memory) -> None:
    book = Playbook(memory, capacity=3)
    numbers = [book.add(f"Rule about subject{n} and matter{n}").lesson or 0 for n in range(3)]
    book.retire(numbers[1])
    book.storage.write(lambda t: t.connection.execute("UPDATE lesson SET proved = 1 WHERE id = 1")).result()
    for n in range(3, 5):
        book.add(f"Rule about subject{n} and matter{n}")
    left = [one.id for one in book.lessons()]
    assert numbers[1] not in left
    assert numbers[0] in left
    assert len(left) == 3


def test_no_flood_of_candidates_drives_out_what_is_in_use(memory: Memory) -> None:
    book = Playbook(memory, capacity=3)
    number = book.add("Weigh the parcel").lesson or 0
    book.approve(number)
    for thing in ("stamps", "labels", "boxes", "scales"):
        book.apply([Add(text=text(f"Count the {thing}"), sources=(experience(memory), experience(memory, "other")))])
    assert (len(book), book.get(number).status) == (3, "active")


def test_every_change_of_status_is_in_the_audit_without_text(memory: Memory, book: Playbook) -> None:
    number = book.add("Weigh the parcel of Mr Miller").lesson or 0
    book.approve(number)
    book.retire(number)
    entries = memory.storage.audit(action="lesson")
    assert [(one.who, one.target, one.after["status"]) for one in entries] == [
        ("ann", f"lesson {number}", status) for status in ("candidate", "active", "retired")
    ]
    assert "Miller" not in str(entries)


def test_lessons_survive_reopening_checking_and_recovery(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with relive.open(path) as memory:
        book = Playbook(memory)
        number = book.add("Weigh the parcel", evidence=[experience(memory).experience_id or 0]).lesson or 0
        book.approve(number)
        before = book.get(number)
    assert check(path).problems == []
    assert recover(path, tmp_path / "new.db").complete
    with relive.open(tmp_path / "new.db") as memory:
        book = Playbook(memory)
        assert book.get(number) == before
        assert [one.lesson.id for one in book.search("parcel")] == [number]
        assert len(book.history(number)) == 2


def test_forgetting_an_experience_takes_its_lessons_out_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with relive.open(path) as memory:
        book = Playbook(memory)
        source = experience(memory, "support", episode_id="secret")
        kept = experience(memory, "support")
        book.add("Ask Mr Zweistein for his zebra", evidence=[source.experience_id or 0])
        book.add("Mention quokkas to Mrs Kwok")
        other = book.add("Weigh the parcel", evidence=[kept.experience_id or 0]).lesson
        memory.forget(episode="secret")
        memory.forget(match="quokka")
        assert [one.id for one in book.lessons()] == [other]
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for word in (b"zweistein", b"zebra", b"quokka", b"kwok"):
        assert word not in content.lower()
    assert b"parcel" in content


@pytest.mark.parametrize(
    "what", [{"episode": "quaxlington-7"}, {"agent": "flimwell", "episode": "quaxlington-7"}, {"match": "Quaxlington"}]
)
def test_forgetting_reaches_what_was_learnt_from_experiences_that_were_evicted_before(
    tmp_path: Path, what: dict[str, str]
) -> None:
    path = tmp_path / "agent.db"
    asked: list[dict[str, str]] = [{"role": "user", "content": "Where is my parcel?"}]
    with relive.open(path, capacity=2) as memory:
        book = Playbook(memory)
        number = book.add("Name the day", when="a parcel").lesson or 0
        book.approve(number)
        plan = Injection(book, held_out=0.0).plan(asked, agent="flimwell", episode="quaxlington-7")
        source = experience(memory, "flimwell", episode_id="quaxlington-7", info=plan.facts)
        book.apply([Add(text=text("Weigh the zebra"), sources=(source,))])
        assert book.follow().exposures == 2
        for _ in range(2):
            experience(memory, "other")
        assert memory.get([source.experience_id or 0]) == [None]
        memory.forget(**{**what, "agent": "nobody"})
        assert len(book) == 2, "all that is given must hold"
        memory.forget(**what)
        assert [one.id for one in book.lessons()] == [number]
        assert book.get(number).text.do == "Name the day"
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir()).lower()
    assert b"quaxlington" not in content
    assert b"zebra" not in content


def test_two_processes_see_each_others_lessons(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with SqliteStorage(path) as one, SqliteStorage(path) as other:
        number = Playbook(one).add("Weigh the parcel").lesson or 0
        Playbook(other).approve(number)
        assert Playbook(one).get(number).status == "active"
        assert Playbook(one).key() == Playbook(other).key()


def test_nothing_of_a_lesson_is_longer_than_it_may_be_and_none_says_nothing() -> None:
    lesson = text("x" * 50_000, when="a\nsystem: b\x00c", title="t" * 1000)
    assert (len(lesson.do), len(lesson.title)) == (600, 120)
    assert lesson.when == "a system: b c"
    with pytest.raises(InvalidLessonError, match="do is empty"):
        text(" \n ")


def test_forget_counts_what_it_found(tmp_path: Path) -> None:
    with relive.open(tmp_path / "agent.db") as memory:
        experience(memory, "support", episode_id="e")
        selection = forgetting.Selection(match="nothing like this")
        assert forgetting.forget(memory.storage, selection).experiences == 0
