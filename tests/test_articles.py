"""The page for readers of the five articles: every row's call runs.

A section's snippet comes first; then each row of its table is evaluated in the same session: the code in the row's
second cell is a Python expression, or a command that begins with ``relive``.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "from-the-articles.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (?P<article>[^|]+) \| (?P<relive>[^|]+) \| (?P<remark>[^|]*) \|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")


def rows(section: str) -> list[tuple[str, str]]:
    """What the article has, and the code of each row's second cell, in order."""
    found = [(match["article"], match["relive"]) for match in ROW.finditer(section)]
    return [(article, code) for article, cell in found if not article.startswith("--") for code in CODE.findall(cell)]


def program(section: str) -> str:
    """A Python program that runs the section's snippets and then each row."""
    lines = SNIPPET.findall(section)
    for article, code in rows(section):
        if code.startswith("relive "):
            lines.append(f"import subprocess; subprocess.run({code.split()!r}, check=True, stdout=subprocess.DEVNULL)")
        else:
            lines.append(f"eval(compile({code!r}, {'row ' + article!r}, 'eval'))")
    return "\n".join(lines)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: s.splitlines()[0])
def test_every_row_of_the_page_runs(section: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert rows(section), "a section without rows tests nothing"
    text = program(section)
    if "http://127.0.0.1:8089/v1" in text:
        text = text.replace("http://127.0.0.1:8089/v1", request.getfixturevalue("local_server").base_url)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", text],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
