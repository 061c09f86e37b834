"""How a file becomes records, whatever it is packed in, however its lines end."""

import gzip
import io
import json
import sys
import types
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from relive.storage.formats import Source, SourceError
from relive.storage.formats.document import Chunk, Scanner

BOM = b"\xef\xbb\xbf"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def chunks(content: bytes, folder: Path, name: str = "file") -> list[Chunk]:
    path = folder / name
    path.write_bytes(content)
    with Source(path) as source:
        first = list(source.chunks())
        assert list(source.chunks()) == first, "a source reads the same every time"
    return first


def data(content: bytes, folder: Path) -> list[tuple[int, bytes | None]]:
    return [(c.line, None if c.data is None else c.data.strip()) for c in chunks(content, folder)]


def test_each_line_is_a_record_with_its_number_and_blank_lines_count(tmp_path: Path) -> None:
    assert data(b'{"a":1}\n\n  \n{"b":2}', tmp_path) == [(1, b'{"a":1}'), (4, b'{"b":2}')]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_a_line_feed_ends_a_line(separator: str, tmp_path: Path) -> None:
    line = f'{{"a": "one{separator}two"}}'.encode()
    assert data(line + b"\r\n" + line, tmp_path) == [(1, line), (2, line)]


def test_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    for content in (b'{"a":1}\r\n{"b":2}\r\n', b'[{"a":1},\n{"b":2}]'):
        assert data(BOM + content, tmp_path) == data(content, tmp_path)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_packed_file_reads_like_the_plain_one_whatever_its_name(pack, tmp_path: Path) -> None:
    content = b"".join(b'{"number": %d, "text": "%s"}\n' % (n, b"word " * 40) for n in range(5000))
    assert chunks(pack(content), tmp_path, "plain.txt") == chunks(content, tmp_path)
    assert chunks(pack(content[:1000]) + pack(content[1000:]), tmp_path) == chunks(content, tmp_path)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_packed_file_that_is_cut_says_so_after_what_came_before(pack, tmp_path: Path) -> None:
    lines = [json.dumps({"number": n, "hash": hash(str(n))}).encode() for n in range(20_000)]
    packed = pack(b"\n".join(lines))
    found = chunks(packed[: len(packed) * 3 // 4], tmp_path)
    assert 1000 < len(found) < len(lines)
    assert [c.data.strip() for c in found[:1000] if c.data] == lines[:1000]
    assert found[-1].data is None
    assert "cut off" in found[-1].problem


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_cli_03_another_encoding_is_named(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"encoded as UTF-(16|32), but Relive reads UTF-8; `iconv"):
        chunks('{"state": 1, "action": 2}\n'.encode(encoding), tmp_path)


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (b"PK\x03\x04rest", "ZIP"),
        (b"BZh9rest", "bzip2"),
        (b"SQLite format 3\x00rest", "database"),
        (b"PAR1rest", "Parquet"),
        (b"\x80\x04\x95rest", "pickle"),
        (b"\x1f\x8bno gzip at all", "cannot be read"),
    ],
)
def test_sto_11_what_cannot_be_read_is_named_and_never_loaded(start: bytes, named: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=named):
        chunks(start, tmp_path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere\.jsonl cannot be read: No such file"):
        Source(tmp_path / "nowhere.jsonl")
    with pytest.raises(SourceError, match="is a folder"):
        Source(tmp_path)


def test_standard_input_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b'{"a":1}\n{"b":2}\n')))
    with Source("-") as source:
        assert [c.line for c in source.chunks()] == [c.line for c in source.chunks()] == [1, 2]
        assert source.name == "standard input"


def test_an_array_is_cut_into_its_elements_with_the_lines_they_begin_on(tmp_path: Path) -> None:
    content = b'[\n  {"a": "],{"},\n  {\n    "b": [1, {"c": 2}]\n  },\n  {"d": "\\""}\n]\n'
    assert data(content, tmp_path) == [
        (2, b'{"a": "],{"}'),
        (3, b'{\n    "b": [1, {"c": 2}]\n  }'),
        (6, b'{"d": "\\""}'),
    ]


def test_one_object_over_several_lines_is_one_record(tmp_path: Path) -> None:
    content = b'{\n  "a": {\n    "b": 1\n  }\n}\n'
    assert data(content, tmp_path) == [(1, content.strip())]


def test_a_broken_first_line_does_not_make_a_document_of_the_others(tmp_path: Path) -> None:
    assert [line for line, _ in data(b'{"a": {"cut off\n{"b": 2}\n{"c": 3}\n', tmp_path)] == [1, 2, 3]


def test_what_stands_between_elements_is_a_record_that_nothing_can_read(tmp_path: Path) -> None:
    found = data(b'[{"a": 1}, oops, {"b": 2}, 17]', tmp_path)
    assert [text for _, text in found] == [b'{"a": 1}', b"oops", b'{"b": 2}', b"17"]


def test_an_array_that_is_cut_gives_its_last_element_as_it_is_or_says_that_it_is_not_closed(tmp_path: Path) -> None:
    assert data(b'[{"a": 1},\n{"b": "tw', tmp_path) == [(1, b'{"a": 1}'), (2, b'{"b": "tw')]
    assert chunks(b'[{"a": 1},\n', tmp_path)[-1].problem == "the file is cut off: its array is not closed"


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=4), st.integers(1, 9), st.booleans())
def test_a_document_is_cut_the_same_wherever_its_pieces_end(values: list, size: int, indented: bool) -> None:
    text = json.dumps(values, indent=2 if indented else None, ensure_ascii=False).encode()
    scanner = Scanner()
    found = [c for at in range(0, len(text), size) for c in scanner.feed(text[at : at + size])]
    found += scanner.finish()
    assert [json.loads(c.data or b"") for c in found] == values
    for chunk in found:
        assert text.split(b"\n")[chunk.line - 1].strip()[:1] == b"{" or not indented
