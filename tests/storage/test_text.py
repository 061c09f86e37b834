"""Full-text search: any language's words are found, and a user's text is never read as a query language."""

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.experience import Transition
from relive.storage import _text
from relive.storage.text import (
    FTS5_TOKENIZER,
    MAX_CHARACTERS,
    MAX_QUERY_TOKENS,
    index_text,
    match_query,
    state_text,
    tokens,
)


class Index:
    """The store's full-text table alone: texts in, positions of the best matches out."""

    def __init__(self, *texts: str) -> None:
        self.database = apsw.Connection(":memory:")
        self.database.execute(f"CREATE VIRTUAL TABLE shelf USING fts5(words, content='', tokenize='{FTS5_TOKENIZER}')")
        for number, text in enumerate(texts):
            row = (number, index_text(Transition(state=text, action=None)))
            self.database.execute("INSERT INTO shelf(rowid, words) VALUES (?, ?)", row)

    def find(self, text: str) -> list[int]:
        query = match_query(text)
        if query is None:
            return []
        found = self.database.execute("SELECT rowid FROM shelf WHERE words MATCH ? ORDER BY bm25(shelf)", (query,))
        return [row[0] for row in found]


LESSONS = {
    "POL-358": "Apply policy POL-358 when a customer cancels within a day",
    "GB/s": "The link carries 12 GB/s, not 12 Gb of anything",
    "C++": "The C++ core is compiled twice",
    "don't use": "Please don't use the old endpoint",
    "ubuntu 20.04": "Runners have ubuntu 20.04 until spring",
    "NOT": "A refund is NOT a chargeback",
    "速率": "请求速率超过限制时等待",
}


@pytest.mark.parametrize("query", LESSONS)
def test_kno_04_each_query_returns_its_lesson_first(query: str) -> None:
    assert Index(*LESSONS.values()).find(query)[0] == list(LESSONS).index(query)


@pytest.mark.parametrize(
    "query", ["a:b", '"', "*", "🚀", "NEAR(a, b)", "words: x", "-a", "a AND", "^a", "{a}", "\x00", "\ud800"]
)
def test_kno_04_no_query_is_an_error(query: str) -> None:
    assert isinstance(Index(*LESSONS.values()).find(query), list)


@pytest.mark.parametrize("query", ["", "   ", "\n\t", '"', "*", "🚀"])
def test_kno_04_a_query_without_a_word_returns_nothing(query: str) -> None:
    assert match_query(query) is None


def test_kno_04_of_ten_thousand_words_the_most_telling_are_looked_up() -> None:
    query = match_query(" ".join(f"w{n % 40}" for n in range(9_998)) + " POL-358 interchangeability " + "the of " * 50)
    assert query is not None
    terms = query.split(" OR ")
    assert len(terms) == MAX_QUERY_TOKENS
    assert '"interchangeability"*' in terms
    assert '"pol－358"' in terms
    assert Index(*LESSONS.values()).find(" ".join(f"word{n}" for n in range(10_000))) == []


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Tôi bị mất thẻ ngân hàng", "mat the ngan hang"),
        ("toi bi mat the", "Tôi bị mất THẺ"),
        ("Đổi mã PIN ở đâu", "doi ma pin o dau"),
        ("カードが届かない", "カード"),
        ("暗証番号を忘れました", "暗証番号"),
        ("暗証番号を忘れました", "忘"),
        ("ﾊﾟｽｺｰﾄﾞを変更", "パスコード"),
        ("我的卡丢了怎么办", "卡丢了"),
        ("我的卡丢了怎么办", "卡"),
        ("카드가 아직 오지 않았어요", "카드"),
        ("บัตรของฉันหาย", "บัตร"),
        ("Was tun bei Kreditkartenverlust?", "Verlust"),
        ("Was tun bei Kreditkartenverlust?", "Karten"),
        ("Was tun bei Kreditkartenverlust?", "kreditkarte"),
        ("Neue Karte bestellen", "Kreditkarte"),
        ("Gebühr für das Girokonto", "Kontoeröffnungsgebühr"),
        ("Bargeld, Taschengeld", "Geld"),
        ("मेरा कार्ड खो गया", "कार्ड"),
        ("La carte a été avalée", "avalee"),
        ("Εχασα την κάρτα μου", "ΚΑΡΤΑ"),
        ("Straße", "STRASSE"),
        ("ﬁnance １２３", "finance 123"),
    ],
)
def test_words_are_found_in_the_way_their_language_writes_them(text: str, query: str) -> None:
    assert Index(text, "something else entirely").find(query) == [0]


@pytest.mark.parametrize("asked_first", [True, False])
@pytest.mark.parametrize(
    ("asked", "kept"),
    [("暗証番号を忘れました", "暗証番号を忘れた"), ("我的卡丢了怎么办", "卡丢了")],
    ids=["japanese", "chinese"],
)
def test_of_a_long_text_without_spaces_beginning_and_end_are_looked_up(
    asked: str, kept: str, asked_first: bool
) -> None:
    story = "".join(map(chr, range(0x5C00, 0x5D00)))  # 256 characters and no pair of them twice
    text = asked + story if asked_first else story + asked
    assert Index("something else entirely", kept).find(text) == [1]
    query = match_query(text)
    assert query is not None
    assert len(query.split(" OR ")) == MAX_QUERY_TOKENS


def test_a_question_without_spaces_is_looked_up_beside_many_short_words() -> None:
    words = "".join(
        f"{chr(a)}{chr(b)}{chr(c)}, " for a in range(97, 102) for b in range(97, 102) for c in range(97, 102)
    )
    assert Index("something else entirely", "卡丢了").find(words + "我的卡丢了怎么办") == [1]


def test_a_word_finds_itself_and_the_compounds_that_hold_it() -> None:
    found = Index("Kartenverlust melden bitte", "Verlust melden bitte", "Konto melden bitte").find("Verlust")
    assert sorted(found) == [0, 1]


def test_short_words_find_no_longer_ones() -> None:
    assert Index("withdrawal", "with a card").find("with") == [1]


def test_parts_of_a_compound_do_not_outweigh_its_words() -> None:
    texts = ["transfer failed yesterday", "the information was information on informative forms", "transferring money"]
    assert Index(*texts).find("my transfer failed")[0] == 0


def test_the_last_user_message_is_what_is_asked() -> None:
    long_story = "story " * 100
    messages = [
        {"role": "system", "content": "You are a clerk."},
        {"role": "user", "content": long_story},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "I lost my card"},
        {"role": "assistant", "content": "Block it?"},
        {"role": "user", "content": [{"type": "text", "text": "yes, please"}, {"type": "image_url", "image_url": "x"}]},
    ]
    assert state_text(messages) == "I lost my card\nyes, please"
    assert state_text({"messages": messages, "tools": [{"name": "block"}]}) == "I lost my card\nyes, please"


def test_a_state_of_any_shape_gives_its_words_and_bounded_text() -> None:
    assert state_text({"position": 12, "goal": ["north", None, True]}) == "position 12 goal north True"
    assert state_text({"pixels": list(range(100)), "room": "hall"}) == "pixels room hall"
    assert len(state_text("x" * 1_000_000)) == MAX_CHARACTERS
    assert len(state_text([{"role": "user", "content": "y" * 1_000_000}])) == MAX_CHARACTERS
    assert len(state_text([["deep", "z" * 5_000]])) <= MAX_CHARACTERS
    assert state_text(None) == ""


@given(st.text(max_size=200))
def test_every_token_survives_the_tokenizer_and_any_text_finds_itself(text: str) -> None:
    assert all(not token.isspace() and " " not in token for token in tokens(text))
    if match_query(text):
        assert 1 in Index("nothing alike", text).find(text)


@given(st.text(st.characters(max_codepoint=127), max_size=60) | st.text("ab1+#-_.:'@ ", max_size=80))
def test_native_tokens_of_ascii_text_are_those_of_the_slow_way(text: str) -> None:
    assert _text.ascii_tokens(text) == " ".join(tokens(text))
    assert _text.ascii_tokens(text + "é") is None


def test_native_tokens_of_long_words_are_those_of_the_slow_way() -> None:
    for text in ("x" * 100, "a-" + "b" * 70, "a" * 64, "a" * 65, "a-" * 40 + "b", "Kreditkartenverlust", "c++++"):
        assert _text.ascii_tokens(text) == " ".join(tokens(text))
