"""The page looked at in a real browser in every situation, width and tone: it fits, can be read, and is not empty.

The pictures go to build/images, and where VSUP_IMAGES says so (`make images`) into docs/images.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from lab import png
from lab.browser import Tab, browser
from lab.page_server import PICTURES, TONES, WIDTHS, picture_name, served
from lab.situations import SITUATIONS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / os.environ.get("VSUP_IMAGES", "build/images")
NARROWEST = 320
"""The narrowest window of WCAG 2 (1.4.10), or a desk's at 400 %."""

BACK = {"light": {(244, 245, 247), (255, 255, 255)}, "dark": {(18, 21, 26), (27, 32, 39)}}
"""The colours of page and cards."""

SCALE = 0.125

RATIO = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const ratio = (one, other) => {
  const [a, b] = [light(parse(one)), light(parse(other))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
const back = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    const parts = parse(colour);
    if (parts.length === 3 || parts[3] > 0) return colour;
  }
  return "rgb(255, 255, 255)";
};
const poor = [];
"""

TEXTS = f"""(() => {{ {RATIO}
  for (const node of document.querySelectorAll("body *")) {{
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || node.closest("svg, progress, [hidden]")) continue;
    const found = ratio(getComputedStyle(node).color, back(node));
    if (found < 4.5) poor.push(`${{node.tagName}} ${{node.textContent.slice(0, 30)}} ${{found.toFixed(2)}}`);
  }}
  return poor;
}})()"""
"""Texts whose contrast with what is behind them is below the 4.5 of WCAG 2 AA (1.4.3)."""

DRAWINGS = f"""(() => {{ {RATIO}
  for (const node of document.querySelectorAll("svg .track ~ rect, polyline")) {{
    const style = getComputedStyle(node);
    if (node.getBoundingClientRect().width < 1) continue;
    const track = node.parentElement.querySelector(".track");
    const [own, other] = node.matches("polyline") ? [style.stroke, back(node)]
      : [style.fill, node.matches(".mark") ? style.stroke : getComputedStyle(track).fill];
    const found = ratio(own, other);
    if (found < 3) poor.push(`${{node.getAttribute("class")}} ${{own}} on ${{other}} ${{found.toFixed(2)}}`);
  }}
  return [...new Set(poor)];
}})()"""
"""Parts of drawings whose contrast with their ground is below the 3 of WCAG 2 AA (1.4.11)."""

OUTSIDE = """[...document.querySelectorAll("body *")]
  .filter((node) => !node.matches(".skip") && node.getBoundingClientRect().right > innerWidth + 0.5)
  .map((node) => `${node.tagName} ${node.className}`)"""


async def look(tab: Tab, port: int, name: str, width: int, tone: str = "light") -> None:
    """Open it and see that nothing sticks out, moves by itself or is refused by the security policy."""
    await tab.look(f"http://127.0.0.1:{port}/{name}", width=width, dark=TONES[tone])
    assert await tab.value("document.documentElement.scrollWidth") <= width
    assert await tab.value(OUTSIDE) == []
    assert await tab.value("document.getAnimations().length") == 0
    assert tab.complaints == []


@pytest.mark.parametrize("name", SITUATIONS)
async def test_it_fits_can_be_read_and_is_a_picture(name: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with served() as port:
        async with browser() as tab:
            await look(tab, port, name, NARROWEST)
            for (place, width), tone in itertools.product(WIDTHS.items(), TONES):
                await look(tab, port, name, width, tone)
                where = picture_name(name, place, tone)
                assert await tab.value(TEXTS) == [], where
                assert await tab.value(DRAWINGS) == [], where
                height = await tab.value("document.documentElement.scrollHeight")
                picture = await tab.picture()
                assert png.size(picture) == (width, height), where
                assert_not_blank(await tab.picture(SCALE), tone, where)
                (FOLDER / where).write_bytes(picture)


def assert_not_blank(small: bytes, tone: str, where: str) -> None:
    """A page is mostly ground, in the colours of its tone, and the rest is text and drawings in many colours."""
    found = png.colours(small)
    share = sum(found[colour] for colour in BACK[tone]) / found.total()
    assert found.most_common(1)[0][0] in BACK[tone], where
    assert 0.4 < share < 0.97, (where, share)
    assert len(found) > 50, where


async def test_a_page_that_is_blank_or_too_wide_or_against_the_policy_is_found() -> None:
    pages = {
        "blank": b'<!doctype html><html><head><link rel="stylesheet" href="/app.css"></head><body></body></html>',
        "wide": b'<!doctype html><html><body><svg width="9000"></svg></body></html>',
        "inline": b'<!doctype html><html><body><p style="color: red">x</p><script>document.title = 1</script></body></html>',
    }
    with served(lambda name: pages[name]) as port:
        async with browser() as tab:
            await look(tab, port, "blank", 1280)
            with pytest.raises(AssertionError, match="picture"):
                assert_not_blank(await tab.picture(SCALE), "light", "picture")
            with pytest.raises(AssertionError):
                await look(tab, port, "wide", 1280)
            await tab.look(f"http://127.0.0.1:{port}/inline")
            await tab.becomes("document.title", "")
            assert sum("Content Security Policy" in said for said in tab.complaints) == 2


def test_the_documentation_has_every_picture_and_no_other() -> None:
    pictures = {path.name: path for path in (ROOT / "docs" / "images").glob("page-*.png")}
    assert set(pictures) == set(PICTURES), "run `make images`"
    assert {name: png.size(path.read_bytes())[0] for name, path in pictures.items()} == PICTURES, "run `make images`"
    shown = (ROOT / "docs" / "images" / "README.md").read_text()
    assert [name for name in PICTURES if f"({name})" not in shown] == []
