"""The page in a real browser: it keeps itself current, fits a phone, can be used by keyboard and read aloud."""

from __future__ import annotations

import itertools
import time

import pytest

from lab.browser import browser
from lab.gen_images import WIDTHS, render, served
from lab.situations import SITUATIONS
from process.harness import Daemon, write_config

CONTRAST = """
(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const back = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || node.closest("svg, progress, [hidden]")) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(back(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${node.tagName} ${node.className} ${node.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return poor;
})()
"""
"""Texts whose contrast with what is behind them is below the 4.5 of WCAG 2 AA."""


@pytest.mark.timeout(300)
async def test_it_fits_and_can_be_read_in_every_situation_width_and_tone():
    with served() as port:
        async with browser() as tab:
            for name in SITUATIONS:  # the narrowest window of WCAG 2 (1.4.10), or a desk's at 400 %
                await tab.look(f"http://127.0.0.1:{port}/{name}", width=320)
                assert await tab.value("document.documentElement.scrollWidth") <= 320, name
            for name, width, dark in itertools.product(SITUATIONS, WIDTHS.values(), (False, True)):
                await tab.look(f"http://127.0.0.1:{port}/{name}", width=width, dark=dark)
                where = f"{name} at {width}, {'dark' if dark else 'light'}"
                assert await tab.value("document.documentElement.scrollWidth") <= width, where
                assert await tab.value(CONTRAST) == [], where
                behind = await tab.value("getComputedStyle(document.body).backgroundColor")
                assert behind == ("rgb(18, 21, 26)" if dark else "rgb(244, 245, 247)"), where
            assert tab.complaints == []


async def test_it_keeps_itself_current_and_says_when_it_cannot():
    asked = []

    def body(name: str) -> bytes:
        asked.append(time.monotonic())
        if name == "gone":
            raise ConnectionError
        return render("loading" if len(asked) == 1 else "ready")

    with served(body) as port:
        async with browser() as tab:
            await tab.look(f"http://127.0.0.1:{port}/page")
            await tab.value("document.querySelector('footer a').focus()")
            assert await tab.value("document.getElementById('badge').textContent") == "loading-weights"
            await tab.becomes("document.getElementById('badge').textContent", "ready")
            assert await tab.value("document.title") == "kimi: ready"
            assert await tab.value("document.getElementById('badge').className") == "badge good"
            assert await tab.value("document.querySelectorAll('polyline').length") >= 3
            assert await tab.value("document.activeElement.textContent") == "metrics"
            assert await tab.value("document.getElementById('stale').hidden")
            assert tab.complaints == []
            await tab.value("history.replaceState(null, '', '/gone')")
            await tab.becomes("document.getElementById('stale').hidden", wanted=False)
            await tab.value("history.replaceState(null, '', '/page')")
            await tab.becomes("document.getElementById('stale').hidden", wanted=True)


async def test_another_instance_comes_and_goes_and_its_link_keeps_the_focus():
    others: list[dict[str, object]] = []

    def body(_: str) -> bytes:
        return render("ready", neighbours=list(others))

    def other(sentence: str) -> dict[str, object]:
        return {"needs": {"name": "mini", "metrics": "127.0.0.1:9478"}, "page": {"status": sentence}}

    card = "document.getElementById('neighbours')"
    with served(body) as port:
        async with browser() as tab:
            await tab.look(f"http://127.0.0.1:{port}/page")
            assert await tab.value(f"getComputedStyle({card}).display") == "none"
            others[:] = [other("Loading weights")]
            await tab.becomes(f"{card}.textContent", "Also on this machineminiLoading weights")
            assert await tab.value(f"getComputedStyle({card}).display") != "none"
            await tab.value(f"{card}.querySelector('a').focus()")
            others[:] = [other("Ready")]
            await tab.becomes(f"{card}.textContent", "Also on this machineminiReady")
            assert await tab.value("document.activeElement.textContent") == "mini"
            others.clear()
            await tab.becomes(f"getComputedStyle({card}).display", "none")
            assert tab.complaints == []


async def test_without_scripts_it_is_fetched_again():
    asked = []

    def body(name: str) -> bytes:
        asked.append(name)
        return render("loading" if len(asked) == 1 else "ready")

    with served(body) as port:
        async with browser() as tab:
            await tab.look(f"http://127.0.0.1:{port}/page", scripts=False)
            # While the next page comes there is no badge for a moment.
            await tab.becomes("document.getElementById('badge')?.textContent", "ready")
            assert asked[:2] == ["page", "page"]


async def test_keyboard_and_screen_reader():
    with served() as port:
        async with browser() as tab:
            await tab.look(f"http://127.0.0.1:{port}/loading")
            reached = []
            for _ in range(4):
                await tab.press("Tab")
                reached.append(await tab.value("document.activeElement.textContent"))
            assert reached == ["Skip to the state", "metrics", "status as JSON", "readiness"]
            assert await tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            nodes = (await tab.do("Accessibility.getFullAXTree"))["nodes"]
            named = {
                (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]
            }
            roles = {role for role, _ in named}
            assert {"main", "navigation", "status", "table", "rowheader", "columnheader"} <= roles
            assert ("progressbar", "progress of the start") in named or ("progress", "progress of the start") in named
            assert ("image", "GPU 0: 32.9 GiB of 95.6 GiB, engine 32.4 GiB") in named
            assert ("image", "loading-weights: 3 min 58 s, usually 8 min 43 s") in named


async def test_a_real_daemon_serves_it(tmp_path):
    config = write_config(tmp_path, {"pace": 0.2})
    with Daemon(config, tmp_path) as daemon:
        daemon.wait_phase("ready")
        async with browser() as tab:
            await tab.look(f"http://127.0.0.1:{daemon.port}/")
            assert await tab.value("document.getElementById('badge').textContent") == "ready"
            assert await tab.value("getComputedStyle(document.querySelector('.card')).borderStyle") == "solid"
            await tab.becomes("document.querySelectorAll('polyline').length > 0", wanted=True)
            assert tab.complaints == []
            daemon.kill()
            await tab.becomes("document.getElementById('stale').hidden", wanted=False)
