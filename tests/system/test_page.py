"""The page in a real browser: it keeps itself current, can be used by keyboard and read aloud; test_page_pictures looks at it."""

from __future__ import annotations

import time

import pytest

from lab.browser import Tab, browser
from lab.page_server import render, served
from lab.situations import SITUATIONS
from process.daemon_tools import running

SYSTEMD = {"INVOCATION_ID": "3" * 32}
IN_SIGHT = """(() => {
  const { left, top, right, bottom } = document.activeElement.getBoundingClientRect();
  return left >= 0 && right <= innerWidth && bottom > top;
})()"""
"""Whether what has the focus can be seen (it may have to be scrolled to)."""


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


async def test_without_scripts_it_says_the_same_and_is_fetched_again():
    asked = []

    def body(name: str) -> bytes:
        asked.append(name)
        return render("loading" if len(asked) == 1 else "ready") if name == "page" else render(name)

    text = "document.body.innerText"
    with served(body) as port:
        async with browser() as tab:
            for name in SITUATIONS:
                await tab.look(f"http://127.0.0.1:{port}/{name}", scripts=False)
                plain = await tab.value(text)
                await tab.look(f"http://127.0.0.1:{port}/{name}")
                assert await tab.value(text) == plain, name
                assert len(plain) > 500, name
            asked.clear()
            await tab.look(f"http://127.0.0.1:{port}/page", scripts=False)
            # While the next page comes there is no badge for a moment.
            await tab.becomes("document.getElementById('badge')?.textContent", "ready")
            assert asked[:2] == ["page", "page"]
            assert tab.complaints == []


async def test_it_is_used_by_keyboard():
    with served() as port:
        async with browser() as tab:
            await tab.look(f"http://127.0.0.1:{port}/waiting")
            reached = []
            for _ in range(5):
                await tab.press("Tab")
                reached.append(await tab.value("document.activeElement.textContent"))
                assert await tab.value(IN_SIGHT), reached[-1]
                assert await tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            assert reached == ["Skip to the state", "embed", "metrics", "status as JSON", "readiness"]
            await tab.value("document.activeElement.blur()")
            await tab.look(f"http://127.0.0.1:{port}/loading")
            await tab.press("Tab")
            await tab.press("Enter")
            await tab.becomes("document.activeElement.id", "main")
            await tab.press("Tab")
            assert await tab.value("document.activeElement.textContent") == "metrics"


@pytest.mark.parametrize("name", SITUATIONS)
async def test_a_screen_reader_finds_its_parts_and_a_name_for_each(name):
    with served() as port:
        async with browser() as tab:
            await tab.look(f"http://127.0.0.1:{port}/{name}")
            nodes = (await tab.do("Accessibility.getFullAXTree"))["nodes"]
    found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    assert {"main", "navigation", "banner", "contentinfo", "status", "table", "rowheader", "columnheader"} <= {
        role for role, _ in found
    }
    regions = [said for role, said in found if role == "region"]
    titles = {"loading": [], "ready": [], "degraded": [], "waiting": ["Also on this machine"]}[name]
    card = "GPUs: 8 × NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
    assert regions == ["Start", "Serving", "Last failure", card, *titles, "Details"]
    headings = [said for role, said in found if role == "heading"]
    assert headings[1:] == regions
    assert headings[0] == "kimi"
    assert ("StaticText", {"loading": "loading-weights"}.get(name, name)) in found
    named = {"region", "heading", "link", "image", "table", "rowheader", "columnheader", "navigation", "progressbar"}
    assert [role for role, said in found if role in named and not said.strip()] == []
    if name == "loading":
        assert ("progressbar", "progress of the start") in found
        assert ("image", "GPU 0: 32.9 GiB of 95.6 GiB, engine 32.4 GiB") in found
        assert ("image", "loading-weights: 3 min 58 s, usually 8 min 43 s") in found


async def test_a_real_daemon_serves_it(tmp_path):
    """One that loads; one that is ready, hangs and is gone; and one that waits, because the others ended unasked."""
    report = {"mode": "report", "hang_after_s": 3.0, "canary_every_s": 1.0}
    badge = "document.getElementById('badge').textContent"

    async def looked_at(tab: Tab) -> None:
        assert await tab.value("document.documentElement.scrollWidth") <= 390
        assert await tab.value("getComputedStyle(document.querySelector('.card')).borderStyle") == "solid"
        assert tab.complaints == []

    async def left(tab: Tab) -> None:
        await tab.look("about:blank")
        tab.complaints.clear()  # nobody answers the page any more, which the browser says

    async with browser() as tab:
        with running(tmp_path, {"pace": 0.2, "cut_at": 2}) as daemon:
            daemon.wait(lambda: (daemon.status().get("shards") or {}).get("loaded") == 2, "two shards")
            await tab.look(f"http://127.0.0.1:{daemon.port}/", width=390)
            assert await tab.value(badge) == "loading-weights"
            assert "shard 2 of 4" in await tab.value("document.querySelector('#start .figures').textContent")
            await looked_at(tab)
        await left(tab)
        with running(tmp_path, {"pace": 0}, liveness=report) as daemon:
            daemon.wait_phase("ready")
            await tab.look(f"http://127.0.0.1:{daemon.port}/", width=390)
            assert await tab.value(badge) == "ready"
            await tab.becomes("document.querySelectorAll('polyline').length > 0", wanted=True)
            await looked_at(tab)
            daemon.control("hang")
            await tab.becomes(badge, "hung", 60)
            await looked_at(tab)
            daemon.kill()
            await tab.becomes("document.getElementById('stale').hidden", wanted=False)
        await left(tab)
        with running(tmp_path, env=SYSTEMD, retry={"first_wait_s": 120}) as daemon:
            daemon.wait_phase("waiting")
            await tab.look(f"http://127.0.0.1:{daemon.port}/", width=390)
            assert await tab.value(badge) == "waiting"
            assert "ended without a word" in await tab.value("document.getElementById('sentence').textContent")
            await looked_at(tab)
