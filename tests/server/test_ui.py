"""The pages over plain HTTP: who may see them, that no recorded text acts in them, that they stay small and quick."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import apsw
import pytest
from server_rig import Served, run
from starlette.applications import Starlette
from starlette.testclient import TestClient

import relive
from relive.errors import InvalidExperienceError
from relive.experience import Feedback, Transition, Usage
from relive.playbook.book import Playbook
from relive.server.pages.app import HEADERS, Pages
from relive.server.pages.text import cut, seen
from relive.storage import SqliteStorage

HOSTILE = (
    '<img src=x onerror="alert(1)">',
    "[click](javascript:alert(1))",
    "</script><script>alert(2)</script>",
    "\" onmouseover='alert(3)' x=\"",
    "</pre></td><iframe srcdoc='<script>alert(4)</script>'>",
    "{{ 7 * 7 }} {% raw %}",
    "\u202egnp.exe\u2066 \u200b\x00\x07\x1b[2J \U000e0041",
)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
EVERY_PAGE = ("/", "/experiences", "/lessons", "/costs", "/costs?days=all", "/nothing", "/experiences/x", "/login")
OWN = {"sec-fetch-site": "same-origin"}


class Elements(HTMLParser):
    """Every element of a page with its attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data


def is_harmless(page: str) -> bool:
    """No script but the three served ones, no handler, no frame, no style, no address that runs anything."""
    for tag, attributes in Elements(page).found:
        if tag in ("iframe", "object", "embed", "img", "style", "base", "meta") and not (
            tag == "meta" and attributes.keys() <= {"charset", "name", "content"}
        ):
            return False
        if tag == "script" and not attributes.get("src", "").startswith("/assets/"):
            return False
        for name, value in attributes.items():
            address = name in ("href", "src", "action") and not value.startswith("/")
            if name.startswith("on") or name == "style" or address:
                return False
    return True


@contextmanager
def pages(file: Path, **options: Any) -> Iterator[TestClient]:
    """A client of the pages over a file, as `relive ui` serves them, or with what is given."""
    with SqliteStorage(file, readonly=not options.get("can_change", False)) as storage:
        app: Starlette = Pages(storage, **options).app()
        with TestClient(app, follow_redirects=False) as client:
            yield client


def call(**fields: Any) -> Transition:
    return Transition(**{"state": {"messages": [{"role": "user", "content": "Where?"}]}, "action": "There.", **fields})


def store(folder: Path, experiences: list[Transition]) -> Path:
    file = folder / "store.db"
    with SqliteStorage(file) as storage:
        storage.append(experiences)
    return file


# -- what is recorded is data --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_dsh_01_text_from_outside_is_text_on_every_page(tmp_path: Path, text: str) -> None:
    state = {
        "system": text,
        "tools": [{text: text}],
        "messages": [
            {"role": text, "content": text, "name": text},
            {"role": "assistant", "tool_calls": [{"function": {"name": text, "arguments": text}}, text]},
            {"role": "tool", "tool_call_id": text, "content": [{"type": "tool_result", "content": text}, {text: text}]},
        ],
    }
    hostile = call(
        state=state,
        action={"role": "assistant", "content": text, "reasoning": text},
        next_state=text,
        agent=text,
        episode_id=text,
        policy=text,
        tags=(text,),
        error=text,
        info={"finish_reason": text, "injected": text},
        cost=5,
    )
    file = store(tmp_path, [hostile, call(state=text, action=text, agent=text)])
    with SqliteStorage(file) as storage:
        storage.feedback(Feedback(experience_id=1, source=text, key=text, comment=text, demonstration=text))
        book = Playbook(storage, author=text)
        book.add(f"Do {text}", when=text, when_not=text, why=text, title=text, agent=text)
        book.retire(1, text)
    with pages(file) as client:
        addresses = [*EVERY_PAGE, "/experiences/1", "/experiences/2", "/lessons/1"]
        addresses += [
            f"/experiences?{name}={quote(text)}" for name in ("text", "agent", "tag", "episode", "since", "outcome")
        ]
        for address in addresses:
            answer = client.get(address)
            assert answer.status_code < 500, address
            assert is_harmless(answer.text), address
        one = Elements(client.get("/experiences/1").text)
        assert one.text.count(seen(text)) >= 8
        for tag, attributes in one.found:
            if tag == "a":
                assert client.get(attributes["href"]).status_code < 400, attributes
        assert [
            row for row in Elements(client.get("/experiences").text).found if row[1].get("href") == "/experiences/1"
        ]
        download = client.get("/experiences/1/record.json")
        assert json.loads(download.text)["agent"] == text
        assert download.headers["content-disposition"] == 'attachment; filename="experience-1.json"'


def test_a_page_names_what_nobody_would_see() -> None:
    assert seen("a\u202eb\x1b\u200b\ud800c\r\n\t") == "a⟨U+202E⟩b⟨U+001B⟩⟨U+200B⟩⟨U+D800⟩c\r\n\t"
    joined = "👩\u200d🚀 می\u200cخواهم"
    assert seen(joined) == joined


def test_dsh_04_what_is_no_number_is_told_apart_and_every_answer_is_strict_json(tmp_path: Path) -> None:
    with pytest.raises(InvalidExperienceError, match="reward"):
        call(reward=float("inf"))
    runs = [
        call(state={"loss": float("nan")}, agent="nan", outcome="failure", reward=0.0),
        call(state={"reward": float("inf")}, agent="infinite", reward=None),
        call(state={"loss": 0.5}, agent="normal", outcome="success", reward=1.0, cost=10**9),
    ]

    async def body(served: Served) -> None:
        await served.ask("/api/experiences", {"experiences": [one.to_dict() for one in runs]})
        api = ("experiences", "experiences/1", "stats", "usage?by=day", "openapi.json", "search?text=loss")
        downloads = (f"/experiences/{number}/record.json" for number in (1, 2, 3))
        for path in (*(f"/api/{name}" for name in api), "/healthz", *downloads):
            async with served.client.get(served.url + path) as answer:
                assert answer.status == 200, path
                json.loads(await answer.text(), parse_constant=pytest.fail)
        async with served.client.get(served.url + "/experiences") as answer:
            listed = Elements(await answer.text())
        assert all(agent in listed.text for agent in ("nan", "infinite", "normal"))
        assert '{"loss":null}' in listed.text
        assert ("td", {"class": "n", "title": "not known"}) in listed.found
        async with served.client.get(served.url + "/") as answer:
            home = Elements(await answer.text())
        assert "0.500 mean of 2 known rewards" in home.text
        assert "2 of 3 calls is not known" in home.text
        (data,) = [attributes["data-chart"] for _, attributes in home.found if "data-chart" in attributes]
        assert json.loads(data, parse_constant=pytest.fail)["spend"][-1] == 1.0

    run(tmp_path, body)


def test_digits_are_on_the_page_as_they_were_recorded(tmp_path: Path) -> None:
    numbers = ("2512292042121000001", "9007199254740993", "9" * 400, "1e400", "1.10")
    import msgspec

    raw = msgspec.Raw(("[" + ", ".join(numbers) + "]").encode())
    arguments = '{"id": 2512292042121000001,  "price": 1.10}'
    action = {"role": "assistant", "tool_calls": [{"function": {"name": "pay", "arguments": arguments}}]}
    with pages(store(tmp_path, [call(state=raw, action=action)])) as client:
        shown = Elements(client.get("/experiences/1").text).text
        assert all(re.search(rf"\b{re.escape(number)}\b", shown) for number in numbers)
        assert arguments in shown


def test_a_message_of_a_megabyte_and_a_talk_of_ten_thousand_turns_leave_a_small_page(tmp_path: Path) -> None:
    long = "begin " + "x" * 1_000_000 + " end"
    talk = [{"role": "user", "content": f"turn {n}"} for n in range(10_000)]
    deep: Any = "core"
    for _ in range(60):
        deep = [deep]
    parts = [{"type": "text", "text": "y" * 1_000} for _ in range(5_000)]
    file = store(
        tmp_path,
        [
            call(state=[{"role": "user", "content": long}]),
            call(state={"messages": talk}),
            call(state=deep, action={"role": "assistant", "content": parts}),
        ],
    )
    with pages(file) as client:
        page = client.get("/experiences/1").text
        assert len(page) < 50_000
        assert "begin x" in page
        assert "x end" in page
        assert f"{len(long) - 20_000:,} characters are left out" in page
        page = client.get("/experiences/2").text
        assert len(page) < 200_000
        assert "turn 0<" in page
        assert "turn 9999<" in page
        assert re.search(r"9,6\d\d pieces are left out", page)
        assert len(client.get("/experiences/3").text) < 1_500_000
        assert len(client.get("/experiences").text) < 20_000


def test_a_cut_text_keeps_its_head_and_its_tail() -> None:
    assert cut("abcdefghij", 5) == ("abcd", 5, "j")
    assert cut("abcde", 5) == ("abcde", 0, "")


# -- who may look, and from where ----------------------------------------------------------------------------------


def test_every_answer_carries_the_strict_policy(tmp_path: Path) -> None:
    assert HEADERS["content-security-policy"] == POLICY
    with pages(store(tmp_path, [call()])) as client:
        for address in (*EVERY_PAGE, "/experiences/1", "/experiences/1/record.json", "/assets/style.css", "/assets/no"):
            for answer in (client.get(address), client.post(address), client.put(address)):
                assert answer.headers["content-security-policy"] == POLICY, address
                assert answer.headers["x-content-type-options"] == "nosniff"


async def ask(served: Served, path: str, **options: Any) -> tuple[int, str, aiohttp.ClientResponse]:
    async with served.client.request(
        options.pop("method", "GET"), served.url + path, allow_redirects=False, **options
    ) as answer:
        return answer.status, await answer.text(), answer


def test_without_keys_only_this_machine_sees_the_pages_whatever_name_it_is_given(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        assert (await ask(served, "/"))[0] == 200
        for headers in (
            {"host": "evil.example"},
            {"host": "127.0.0.1.evil.example"},
            {"host": "["},
            {"origin": "http://evil.example"},
            {"origin": "null"},
        ):
            for path in ("/", "/experiences", "/assets/style.css"):
                assert (await ask(served, path, headers=headers))[0] == 403, (path, headers)

    run(tmp_path, body)


def test_with_keys_a_browser_logs_in_once_and_a_revoked_key_opens_nothing(tmp_path: Path) -> None:
    from relive.server.build import open_keys

    ledger, keys = open_keys(tmp_path / "store.db")
    reader, record = keys.create("anna", ["read"])
    caller, _ = keys.create("agent", ["call"])
    ledger.close()

    async def body(served: Served) -> None:
        for path in ("/", "/experiences/1/record.json", "/costs"):
            status, page, _ = await ask(served, path)
            assert (status, "rlv_" in page) == (401, True)
        for key, status in (("rlv_wrong", 401), ("", 401), (caller, 403)):
            form = {"key": key, "next": "/costs"}
            found, _, answer = await ask(served, "/login", method="POST", data=form, headers=OWN)
            assert (found, "set-cookie" in answer.headers) == (status, False)
        form = {"key": reader, "next": "/costs"}
        assert (await ask(served, "/login", method="POST", data=form))[0] == 403  # it does not say where it comes from
        status, _, answer = await ask(served, "/login", method="POST", data=form, headers=OWN)
        assert (status, answer.headers["location"]) == (303, "/costs")
        cookie = answer.headers["set-cookie"]
        assert {"httponly", "samesite=strict"} <= {part.strip().lower() for part in cookie.split(";")}
        assert reader not in cookie
        session = {"cookie": cookie.partition(";")[0]}
        assert (await ask(served, "/", headers=session))[0] == 200
        assert (await ask(served, "/", headers={"authorization": f"Bearer {reader}"}))[0] == 200
        served.parts.keys.revoke(record.id)
        assert (await ask(served, "/", headers=session))[0] == 401

    run(tmp_path, body, server={"keys": "required"})


@pytest.mark.parametrize("going", ["//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil.example"])
def test_a_login_never_leads_away(tmp_path: Path, going: str) -> None:
    with pages(store(tmp_path, [call()])) as client:
        answer = client.post("/login", data={"key": "x", "next": going}, headers=OWN)
        assert answer.headers["location"] in ("/", "/%09/evil.example")


def test_a_lesson_is_changed_by_its_own_page_alone_and_looking_changes_nothing(tmp_path: Path) -> None:
    file = store(tmp_path, [call()])
    with SqliteStorage(file) as storage:
        Playbook(storage).add("Answer briefly.")
    with pages(file, can_change=True) as client, SqliteStorage(file, readonly=True) as storage:
        book, before = Playbook(storage), storage.change_number()
        for headers in (
            {},
            {"origin": "http://evil.example"},
            {"origin": "http://testserver:1"},
            {"origin": "null"},
            {"sec-fetch-site": "same-site"},
            {"sec-fetch-site": "cross-site", "origin": "http://testserver"},
        ):
            assert client.post("/lessons/1/approve", headers=headers).status_code == 403
        assert book.get(1).status == "candidate"
        for address in (*EVERY_PAGE, "/experiences/1", "/lessons/1", "/lessons/1/approve", "/lessons/1/retire"):
            client.get(address)
        assert (book.get(1).status, storage.change_number(), len(storage.audit())) == ("candidate", before, 1)
        answer = client.post("/lessons/1/approve", headers={"origin": "http://testserver"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/lessons/1")
        assert book.get(1).status == "active"
        client.post("/lessons/1/retire", data={"reason": "Out of date."}, headers=OWN)
        assert (book.get(1).status, book.get(1).reason) == ("retired", "Out of date.")
        assert client.post("/lessons/1/delete", headers=OWN).status_code == 404
        assert client.post("/lessons/2/approve", headers=OWN).status_code == 404
    with pages(file) as client:
        assert client.post("/lessons/1/approve", headers=OWN).status_code == 400


def test_only_a_key_with_all_rights_decides_on_lessons(tmp_path: Path) -> None:
    from relive.server.build import open_keys

    ledger, keys = open_keys(tmp_path / "store.db")
    texts = {scope: keys.create(scope, [scope])[0] for scope in ("read", "admin")}
    ledger.close()

    async def body(served: Served) -> None:
        book = Playbook(served.parts.memory.storage)
        book.add("Answer briefly.")
        for scope, status in (("read", 403), ("admin", 303)):
            headers = {**OWN, "authorization": f"Bearer {texts[scope]}"}
            assert (await ask(served, "/lessons/1/approve", method="POST", headers=headers))[0] == status
        assert book.history(1)[-1].who == "admin (key 2)"

    run(tmp_path, body, server={"keys": "required"})


# -- figures, pages, sizes -----------------------------------------------------------------------------------------


def test_an_empty_store_has_every_page(tmp_path: Path) -> None:
    with pages(store(tmp_path, [])) as client:
        for address, words in (
            ("/", "The store is empty"),
            ("/experiences", "No experience matches."),
            ("/lessons", "No lesson here."),
            ("/costs?days=all", "No calls in this time."),
        ):
            answer = client.get(address)
            assert answer.status_code == 200
            assert words in answer.text
        assert client.get("/experiences/1").status_code == 404
        assert client.get("/lessons/1").status_code == 404


def test_conditions_find_what_they_name_page_by_page_even_while_more_is_recorded(tmp_path: Path) -> None:
    day = datetime(2026, 11, 1, 12, tzinfo=UTC)
    made = [
        call(
            state=f"word{n} common",
            agent="a" if n % 2 else "b",
            outcome="success" if n % 3 else "failure",
            tags=("odd",) if n % 2 else (),
            created_at=day + timedelta(days=n // 60),
        )
        for n in range(120)
    ]
    file = store(tmp_path, made)

    def listed(page: str) -> list[int]:
        return [int(number) for number in re.findall(r'<td class="n"><a href="/experiences/(\d+)">', page)]

    with pages(file) as client, SqliteStorage(file) as storage:
        first = client.get("/experiences?agent=a").text
        storage.append([call(agent="a")])
        following = re.search(r'href="(/experiences\?[^"]*before=[^"]*)"', first)
        assert following is not None
        second = client.get(following[1].replace("&amp;", "&")).text
        assert listed(first) + listed(second) == list(range(120, 0, -2))
        assert "Older" not in second
        assert listed(client.get("/experiences?outcome=failure&agent=a").text) == list(range(118, 0, -6))
        assert listed(client.get("/experiences?tag=odd&until=2026-11-01").text) == list(range(60, 0, -2))[:50]
        assert listed(client.get("/experiences?since=2026-11-02&text=word61").text) == [62]
        assert listed(client.get(f"/experiences?episode={made[4].episode_id}").text) == [5]


def test_home_and_costs_show_the_figures_that_the_commands_print(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    made = [
        call(outcome="success", policy="large", cost=3 * 10**9, created_at=now - timedelta(days=9)),
        call(outcome="success", policy="large", cost=10**9, usage=Usage(input_tokens=1_000, output_tokens=10)),
        call(outcome="failure", policy="small", cost=None),
    ]
    file = store(tmp_path, made)
    with pages(file) as client:
        shown = Elements(client.get("/costs").text).text
    assert "≥ $4 spent" in shown
    assert "$2 a success" in shown
    assert "≥ $13.3" in shown  # 4 USD in 9 days, 30 days of it
    assert "1 of 3 calls is not known" in shown
    assert re.search(r"large\s*2\s*2\s*1,000\s*–\s*10\s*\$4\s*\$2", re.sub(r"\s+", " ", shown))


def test_what_helped_is_shown_with_its_interval_and_where_it_was_used(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with SqliteStorage(file) as storage:
        book = Playbook(storage, author="anna")
        book.add("Ask for the order first.", evidence=[1, 2])
        book.approve(1)
        made = []
        for n in range(200):
            used, good = n % 4 != 0, n % 4 != 0 and n % 10 != 1
            injected = {"episode": f"e{n}", "tenant": "default", "agent": "a", "book": [used, 0.75]}
            injected["lessons"] = [[1, 1, 0.2, n % 2 == 1, 0.5]] if used else []
            made.append(call(episode_id=f"e{n}", outcome="success" if good else "failure", info={"injected": injected}))
        storage.append(made)
        book.follow()
        worth = book.worth()
    with pages(file) as client:
        home = Elements(client.get("/").text).text
        assert re.search(r"With injection\s*86.7%\s*150 episodes", home)
        assert re.search(r"Without\s*0.0%\s*50 episodes", home)
        assert f"{100 * float(worth.low):+.1f} to {100 * float(worth.high):+.1f}" in home
        assert "Ask for the order first." in home
        one = client.get("/experiences/4").text
        assert 'href="/lessons/1"' in one
        assert "held out, by chance" in client.get("/experiences/1").text
        lesson = client.get("/lessons/1").text
        assert 'href="/experiences/2"' in lesson
        assert re.findall(r"<td>(add|approve|prove)</td>", lesson)[:2] == ["add", "approve"]
        assert "150" in lesson


def test_a_hundred_thousand_experiences_take_no_more_questions_and_no_larger_pages(
    tmp_path: Path,
) -> None:
    now, sizes, questions = datetime.now(UTC), [], []
    addresses = ("/", "/experiences", "/experiences?text=word", "/experiences?tag=t", "/experiences/1", "/lessons",
                 "/costs", "/costs?days=all")  # fmt: skip
    asked: list[str] = []

    def count(_cursor: Any, statement: str, _values: Any) -> bool:
        asked.append(statement)
        return True

    for number in (100, 100_000):
        file = tmp_path / f"{number}.db"
        with SqliteStorage(file, text_index=number == 100) as storage:
            for start in range(0, number, 5_000):
                storage.append(
                    [
                        call(
                            agent=f"a{n % 3}",
                            episode_id=f"e{n // 10}",
                            tags=("t",),
                            created_at=now - timedelta(days=20 * (1 - n / number)),
                        )
                        for n in range(start, min(start + 5_000, number))
                    ]
                )
        apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", count))
        try:
            with pages(file) as client:
                client.get("/experiences/1")
                asked.clear()
                answers = []
                for address in addresses:
                    answers.append(client.get(address))
                    assert answers[-1].status_code == 200
        finally:
            apsw.connection_hooks.pop()
        questions.append(len(asked))
        sizes.append(max(len(answer.content) for answer in answers))
    assert questions[1] <= questions[0] + 2 < 130  # two more: the dictionary that a large store compresses with
    assert sizes[1] < 60_000


def test_a_damaged_experience_does_not_take_the_page_with_it(tmp_path: Path) -> None:
    file = store(tmp_path, [call(state="x" * 500), call(state="fine")])
    connection = apsw.Connection(str(file))
    connection.execute("UPDATE payload SET body = x'00ff' WHERE id = 1").fetchall()
    connection.close()
    with pages(file) as client:
        listed = client.get("/experiences").text
        assert "cannot be read" in listed
        assert "fine" in listed
        one = client.get("/experiences/1")
        assert (one.status_code, "relive check" in one.text) == (200, True)


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command_shows_a_store_that_another_process_owns_and_writes_nothing(tmp_path: Path) -> None:
    import urllib.request

    file = tmp_path / "agent.db"
    command = [sys.executable, "-c", "from relive.cli import main; main()", "ui", str(file), "--port", "0"]
    with relive.open(file) as memory:
        memory.add(call(agent="first"))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().split()[2]
                memory.add(call(agent="second"))
                with urllib.request.urlopen(url + "/experiences") as answer:  # noqa: S310
                    page = answer.read().decode()
                assert "first" in page
                assert "second" in page
                foreign = urllib.request.Request(url, headers={"host": "evil.example"})  # noqa: S310
                with pytest.raises(urllib.error.HTTPError, match="403"):
                    urllib.request.urlopen(foreign)  # noqa: S310
                process.terminate()
                assert process.wait(timeout=60) == 0
            finally:
                process.kill()
    missing = subprocess.run([*command[:4], str(tmp_path / "none.db")], capture_output=True, text=True)
    assert missing.returncode == 1
    assert not (tmp_path / "none.db").exists()
