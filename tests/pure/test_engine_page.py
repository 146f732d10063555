"""One fetch of the engine's page for all who want it."""

from __future__ import annotations

import asyncio

from vllm_supervisor.daemon import engine_page
from vllm_supervisor.daemon.engine_page import EnginePage


class Engine:
    """Answers with the number of the fetch, once it may."""

    def __init__(self, *, answers: bool = True) -> None:
        self.asked = 0
        self.begun = asyncio.Event()
        self.may = asyncio.Event()
        if answers:
            self.may.set()

    async def metrics(self) -> bytes:
        self.asked += 1
        number = self.asked
        self.begun.set()
        await self.may.wait()
        return str(number).encode()


async def test_a_young_page_is_not_fetched_again(monkeypatch):
    monkeypatch.setattr(engine_page, "EVERY_S", 3600.0)
    engine = Engine()
    page = EnginePage(engine.metrics)
    began = asyncio.get_running_loop().time()
    first = await page.now()
    assert first.page == b"1"
    assert first.at >= began
    assert await page.lately() == first, "who looks at the counters has fetched it for the scrape"
    assert (await page.now()).page == b"2", "who must know it now asks anew"
    assert (await page.lately()).page == b"2"
    assert engine.asked == 2


async def test_an_old_page_is_fetched_again(monkeypatch):
    monkeypatch.setattr(engine_page, "EVERY_S", 0.0)
    page = EnginePage(Engine().metrics)
    assert [(await page.lately()).page for _ in range(3)] == [b"1", b"2", b"3"]


async def test_all_who_ask_meanwhile_get_the_same_answer():
    engine = Engine(answers=False)
    page = EnginePage(engine.metrics)
    asking = [asyncio.create_task(page.lately(wait)) for wait in (None, 60.0, None)]
    await engine.begun.wait()
    engine.may.set()
    assert {(await one).page for one in asking} == {b"1"}
    assert engine.asked == 1


async def test_a_scrape_goes_without_a_page_that_does_not_come_and_a_look_waits_for_it():
    engine = Engine(answers=False)
    page = EnginePage(engine.metrics)
    looking = asyncio.create_task(page.lately())
    assert (await page.lately(0.01)).page is None
    assert not looking.done()
    engine.may.set()
    assert (await looking).page == b"1"


async def test_an_engine_that_does_not_answer_has_no_page():
    async def refuses() -> None:
        return None

    assert (await EnginePage(refuses).lately()).page is None
