"""The pages in a real browser, Debian's chromium: nothing recorded runs in it, charts are drawn, people decide."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_rig import Process, upstream_thread
from test_ui import HOSTILE, call

from relive.experience import Feedback
from relive.playbook.book import Playbook
from relive.storage import SqliteStorage

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not here: apt-get install chromium")


class Tab:
    """A page of a browser, and all that went wrong in it."""

    def __init__(self, page: "playwright.Page", url: str, store: Path) -> None:
        self.page = page
        self.url = url
        self.store = store
        self.wrong: list[str] = []
        page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("dialog", lambda dialog: (self.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: None if request.url.startswith(url) else self.wrong.append(request.url))

    def go(self, path: str) -> None:
        """Opens a page and waits until it has come to rest."""
        self.page.goto(self.url + path, wait_until="networkidle")


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    """A browser at a server in a process of its own; at the end nothing may have gone wrong in it."""
    with upstream_thread() as upstream, playwright.sync_playwright() as player:
        server = Process(tmp_path, "--upstream", upstream.base_url, "--store", "store.db")
        url = server.ready()
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            made = Tab(browser.new_page(), url, tmp_path / "store.db")
            yield made
            assert made.wrong == []
        finally:
            browser.close()
            server.stop()


def test_dsh_01_nothing_recorded_runs_in_a_browser(tab: Tab) -> None:
    with SqliteStorage(tab.store) as storage:
        storage.append([call(state=text, action=text, agent=text, error=text, tags=(text,)) for text in HOSTILE])
        messages = [{"role": "user", "content": text} for text in HOSTILE]
        storage.append([call(state={"messages": messages, "system": "\n".join(HOSTILE)}, policy="".join(HOSTILE))])
        storage.feedback(Feedback(experience_id=1, source="<b>", comment="".join(HOSTILE)))
        for text in HOSTILE:
            Playbook(storage).add(f"Do {text}", when=text, why=text, agent=text)
    whole = len(HOSTILE) + 1
    for path in ("/", "/experiences", f"/experiences/{whole}", "/experiences/1", "/lessons", "/lessons/1", "/costs"):
        tab.go(path)
        assert tab.page.locator("main script, main img, main iframe").count() == 0
        handlers = (
            "[...document.querySelectorAll('*')].flatMap(e => [...e.attributes]).filter(a => /^on/i.test(a.name))"
        )
        assert tab.page.evaluate(f"{handlers}.length") == 0
    tab.go(f"/experiences/{whole}")
    shown = tab.page.locator("article.user pre").all_inner_texts()
    assert shown[:3] == list(HOSTILE[:3])
    assert "⟨U+202E⟩" in shown[-1]


def test_the_charts_are_drawn_and_a_finding_narrows_while_one_types(tab: Tab) -> None:
    with SqliteStorage(tab.store) as storage:
        storage.append([call(state=f"card number {n}", cost=10**6, outcome="success") for n in range(60)])
        storage.append([call(state="a pending transfer", agent="bank")])
    tab.go("/")
    assert tab.page.locator("figure canvas").count() == 2
    drawn = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(value => value > 0)"
    assert all(canvas.evaluate(drawn) for canvas in tab.page.locator("figure canvas").all())
    tab.go("/experiences")
    rows = tab.page.locator("tbody tr")
    assert rows.count() == 50
    tab.page.get_by_text("Older").click()
    playwright.expect(rows).to_have_count(11)
    tab.go("/experiences")
    tab.page.get_by_label("Words of the state").press_sequentially("transfer")
    playwright.expect(rows).to_have_count(1)
    assert "text=transfer" in tab.page.url  # so that it can be sent to somebody
    tab.page.locator("tbody a").first.click()
    playwright.expect(tab.page.locator("h1")).to_contain_text("Experience 61")


def test_a_person_approves_a_lesson_and_retires_it_again(tab: Tab) -> None:
    with SqliteStorage(tab.store) as storage:
        Playbook(storage).add("Ask for the order date first.", when="a card is missing")
    tab.go("/lessons?status=candidate")
    tab.page.get_by_role("link", name="Ask for the order date first.").click()
    tab.page.get_by_role("button", name="Approve").click()
    playwright.expect(tab.page.locator("h1 .status")).to_have_text("active")
    tab.page.get_by_label("Why").fill("It was tried before.")
    tab.page.get_by_role("button", name="Retire").click()
    playwright.expect(tab.page.locator("h1 .status")).to_have_text("retired")
    with SqliteStorage(tab.store, readonly=True) as storage:
        assert Playbook(storage).get(1).reason == "It was tried before."


def test_a_foreign_page_changes_no_lesson(tab: Tab) -> None:
    with SqliteStorage(tab.store) as storage:
        Playbook(storage).add("Answer briefly.")
    target = f"{tab.url}/lessons/1/approve"
    foreign = f"<form method=post action='{target}'></form><script>document.forms[0].submit()</script>"
    with tab.page.expect_response(target) as answer:
        tab.page.goto("about:blank")
        tab.page.set_content(foreign)
    assert answer.value.status == 403
    with SqliteStorage(tab.store, readonly=True) as storage:
        assert Playbook(storage).get(1).status == "candidate"
    tab.wrong.clear()  # the browser notes that it was refused


def test_what_does_not_fit_scrolls_within_itself_on_a_phone(tab: Tab) -> None:
    with SqliteStorage(tab.store) as storage:
        storage.append([call(state="x" * 5_000, action="y" * 5_000, agent="z" * 300)])
    tab.page.set_viewport_size({"width": 390, "height": 800})
    for path in ("/", "/experiences", "/experiences/1", "/lessons", "/costs"):
        tab.go(path)
        assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
