"""The README's pictures stand alone, tell nothing of who made them, and show what is said today.

docs/pictures/make.py makes them from real runs.
"""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))

VARIANT = r"[a-z0-9]+(?:\.[a-z0-9]+){4,}"
ABOUT = r"\((\d+\.\d s last time; )?kept in ~/\.cache/jitsparse\)"


def lines(picture: Path) -> list[str]:
    """The lines of text in a picture."""
    rows: dict[float, str] = {}
    for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text"):
        if "matrix" in text.get("clip-path", "") or "line" in text.get("clip-path", ""):
            height = float(text.get("y", "0"))
            rows[height] = rows.get(height, "") + html.unescape(text.text or "")
    return [rows[height].replace("\xa0", " ").rstrip() for height in sorted(rows)]


def line_of(name: str, word: str) -> str:
    """The first line of a picture that has a word."""
    return next(line for line in lines(ROOT / "docs" / "pictures" / f"{name}.svg") if word in line)


def test_each_is_shown() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = re.findall(r"!\[[^\]]+\]\((?:docs/)?pictures/(\S+\.svg)\)", text)
    assert sorted(shown) == [path.name for path in PICTURES]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_it_stands_alone(picture: Path) -> None:
    source = picture.read_text(encoding="utf-8")
    assert len(source) < 20_000
    # Nothing is fetched: the one address is the name of the format.
    assert set(re.findall(r"https?://[^\"'\s)]+", source)) == {"http://www.w3.org/2000/svg"}
    assert "@font-face" not in source
    assert "<script" not in source


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_it_names_no_place(picture: Path) -> None:
    text = "\n".join(lines(picture))
    assert text
    assert not re.search(r"/(tmp|home|root|usr|opt|work|mnt|var)\b", text)


def test_a_first_use_while_it_lasts() -> None:
    line = line_of("first-use-live", "compiling")
    assert re.fullmatch(rf"\S jitsparse: compiling {VARIANT}, \d\.\d s {ABOUT}", line)
    assert "last time" in line


def test_a_first_use_when_it_is_done() -> None:
    line = line_of("first-use", "compiled")
    assert re.fullmatch(rf"jitsparse: compiled {VARIANT} in \d+\.\d s {ABOUT}", line)


def test_a_notebook() -> None:
    live, stays = line_of("notebook-live", "compiling"), line_of("notebook", "compiled")
    assert re.fullmatch(rf" +jitsparse: compiling {VARIANT}, \d+\.\d s {ABOUT}", live)
    assert re.fullmatch(rf" +jitsparse: compiled {VARIANT} in \d+\.\d s {ABOUT}", stays)


def test_a_warm_up() -> None:
    # Text is set apart by its place, so there may be no blank between two columns.
    assert re.search(r"\d+/\d+ *\d:\d\d:\d\d compiled", line_of("warmup-live", "compiling"))
    assert re.search(r"\d+ compiled, \d+ already cached, 0 failed", line_of("warmup", " failed,"))
