"""A real browser without a window, driven over its own protocol (DevTools, by way of aiohttp's websocket)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

START_S, ANSWER_S = 30.0, 20.0


class BrowserError(Exception):
    """The browser does not do what it was asked for; the message is one sentence."""


class Tab:
    """One page in it.

    Attributes:
        complaints: What the page's console said: errors, violations of its security policy, exceptions.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self.complaints: list[str] = []

    async def listen(self) -> None:
        """Take what the browser sends, until it ends."""
        async for message in self._socket:
            body = message.json()
            if "id" in body:
                future = self._waiting.pop(body["id"])
                if not future.done():
                    future.set_result(body)
            elif body["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif body["method"] == "Log.entryAdded" and body["params"]["entry"]["level"] == "error":
                self.complaints.append(body["params"]["entry"]["text"])
            elif body["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(body["params"]["exceptionDetails"]))
            elif body["method"] == "Runtime.consoleAPICalled" and body["params"]["type"] in {"error", "warning"}:
                self.complaints.append(str(body["params"]["args"]))

    async def do(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol; its result."""
        self._number += 1
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        body = await asyncio.wait_for(future, ANSWER_S)
        if "error" in body:
            raise BrowserError(f"{method}: {body['error']['message']}")
        return dict(body["result"])

    async def look(self, url: str, *, width: int = 1280, dark: bool = False, scripts: bool = True) -> None:
        """Open a page and wait until it is loaded."""
        await self.do("Emulation.setScriptExecutionDisabled", value=not scripts)
        await self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        tone = "dark" if dark else "light"
        await self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": tone}])
        self._loaded.clear()
        await self.do("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), ANSWER_S)

    async def value(self, script: str) -> Any:
        """What an expression is in the page."""
        result = await self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    async def becomes(self, script: str, wanted: Any, limit_s: float = ANSWER_S) -> None:
        """Wait until an expression has a value."""
        until = asyncio.get_running_loop().time() + limit_s
        while (found := await self.value(script)) != wanted:
            if asyncio.get_running_loop().time() > until:
                raise BrowserError(f"{script} is still {found!r}, not {wanted!r}, after {limit_s:g} s")
            await asyncio.sleep(0.1)

    async def press(self, key: str) -> None:
        """One key: Tab or Enter."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind, more in (("keyDown", text), ("keyUp", {})):
            await self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    async def picture(self, scale: float = 1.0) -> bytes:
        """The whole page as a PNG, as long as it is; a pixel of it is `scale` pixels of the picture."""
        size = (await self.do("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": scale}
        result = await self.do("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(result["data"])


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    """A browser with one tab and a profile that is thrown away.

    Raises:
        BrowserError: there is none, or it does not start.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise BrowserError("chromium is missing: run `make deps`")
    with tempfile.TemporaryDirectory(prefix="vsup-browser.", ignore_cleanup_errors=True) as profile:
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command += ["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
        command += ["--disable-lcd-text"]  # grey edges look the same on every screen that a picture is shown on
        command += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with aiohttp.ClientSession() as session:
                address = await _address(session, Path(profile) / "DevToolsActivePort")
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    tab = Tab(socket)
                    listening = asyncio.create_task(tab.listen())
                    for domain in ("Page", "Runtime", "Log", "Accessibility"):
                        await tab.do(f"{domain}.enable")
                    yield tab
                listening.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await listening
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _address(session: aiohttp.ClientSession, file: Path) -> str:
    """The websocket of its first tab, once it listens."""
    until = asyncio.get_running_loop().time() + START_S
    while True:
        with contextlib.suppress(OSError, ValueError, IndexError, aiohttp.ClientError):
            port = int(file.read_text().splitlines()[0])
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [tab for tab in await answer.json() if tab["type"] == "page"]
                return str(pages[0]["webSocketDebuggerUrl"])
        if asyncio.get_running_loop().time() > until:
            raise BrowserError(f"the browser does not listen after {START_S:g} s")
        await asyncio.sleep(0.05)
