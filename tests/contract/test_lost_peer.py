"""What asyncio itself reports of a broken connection ends no engine; what it reports of our tasks does."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from vllm_supervisor.daemon.main import is_only_a_lost_peer


def reported(make: Any) -> list[dict[str, Any]]:
    """What the loop's handler is told when what `make` begins is never looked at again."""
    told: list[dict[str, Any]] = []

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        make()
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(body())
    return told


def future(error: Exception) -> None:
    asyncio.get_running_loop().create_future().set_exception(error)


def task(error: Exception) -> None:
    async def fail() -> None:
        raise error

    asyncio.get_running_loop().create_task(fail())


def callback(error: Exception) -> None:
    def fail() -> None:
        raise error

    asyncio.get_running_loop().call_soon(fail)


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError(), ConnectionAbortedError()])
def test_a_transports_future_of_a_broken_connection_is_no_bug(error: Exception) -> None:
    assert [is_only_a_lost_peer(context) for context in reported(lambda: future(error))] == [True]


@pytest.mark.parametrize("begin", [task, callback])
def test_a_broken_connection_in_a_task_or_callback_of_ours_is_one(begin: Any) -> None:
    assert [is_only_a_lost_peer(context) for context in reported(lambda: begin(BrokenPipeError()))] == [False]


def test_any_other_error_is_one() -> None:
    assert [is_only_a_lost_peer(context) for context in reported(lambda: future(ValueError()))] == [False]
