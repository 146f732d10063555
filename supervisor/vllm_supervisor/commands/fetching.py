"""A model from the hub into a directory: only what is missing or damaged, several files at once, each verified."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_supervisor.core.download import (
    DAMAGED_TRIES,
    TRIES,
    Listing,
    Meter,
    RemoteFile,
    Standing,
    lacking,
    order,
    space_problem,
    standings,
    wait_before,
)

if TYPE_CHECKING:
    from vllm_supervisor.adapters.hub import Hub, HubError
    from vllm_supervisor.adapters.local_files import LocalFiles, Pace

FIRST_WAIT_S = 1.0
SHOW_EVERY_S = 0.5
Show = Callable[[str, int, int], None]
"""Told of progress: a sentence, bytes done, bytes in all."""


class FetchError(Exception):
    """It did not get through; the message is one sentence.

    Attributes:
        again: Whether a later call can help.
    """

    def __init__(self, sentence: str, *, again: bool) -> None:
        super().__init__(sentence)
        self.again = again


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was done: names of the files that were fetched, and those of them that replaced damaged ones."""

    fetched: tuple[str, ...]
    repaired: tuple[str, ...]


class Fetcher:
    """Brings one directory up to one listing.

    Args:
        hub: Where from.
        local: Where to; its lock is held.
        pace: Bounds the reading of files that are verified.
        workers: Files at once.
        show: Told of progress.
    """

    def __init__(self, hub: Hub, local: LocalFiles, pace: Pace, workers: int, show: Show) -> None:
        self._hub, self._local, self._pace, self._workers, self._show = hub, local, pace, workers, show
        self._verified = local.verified()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._repaired: list[str] = []
        self._waits: dict[str, str] = {}

    def run(self, listing: Listing) -> Fetched:
        """Fetch what is not whole.

        Raises:
            FetchError: something did not arrive.
        """
        damaged = self.verify(listing, only_unverified=True)
        for name, standing in damaged.items():
            if standing is Standing.DAMAGED:
                self._local.forget(name)
                self._repaired.append(name)
        sizes = self._local.sizes(listing)
        wanted = order(damaged, listing)
        self._local.clear_parts(listing)
        short = lacking(wanted, self._local.begun(listing))
        problem = space_problem(short, self._local.free_bytes(), str(self._local.directory))
        if problem:
            raise FetchError(problem, again=False)
        whole = sum(size for name, size in sizes.items() if name not in damaged)
        self._all(listing, wanted, whole)
        return Fetched(tuple(file.name for file in wanted), tuple(self._repaired))

    def verify(self, listing: Listing, *, only_unverified: bool = False) -> dict[str, Standing]:
        """The files that are not whole, by reading them; what is right is remembered."""
        known = self._verified if only_unverified else set()
        found = standings(listing, self._local.sizes(listing), known)
        files = {file.name: file for file in listing.files}
        unread = [files[name] for name, standing in found.items() if standing is Standing.UNVERIFIED]
        meter, total = Meter(sum(file.size or 0 for file in unread)), sum(file.size or 0 for file in unread)
        before, shown = self._pace.done, [0.0]

        def pace(count: int) -> None:
            self._pace(count)
            now = time.monotonic()
            if now - shown[0] >= SHOW_EVERY_S:
                shown[0] = now
                meter.see(now, self._pace.done - before)
                self._show(f"verifying: {meter.words()}", self._pace.done - before, total)

        for file in unread:
            right = self._local.right(file, pace)
            found[file.name] = Standing.WHOLE if right else Standing.DAMAGED
        self._verified = {name for name, standing in found.items() if standing is Standing.WHOLE}
        self._local.keep_verified(self._verified)
        return {name: standing for name, standing in found.items() if standing is not Standing.WHOLE}

    def _all(self, listing: Listing, wanted: list[RemoteFile], whole: int) -> None:
        total = whole + sum(file.size or 0 for file in wanted)
        meter = Meter(total)
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="fetch")
        try:
            open_: Mapping[Future[None], str] = {pool.submit(self._one, listing, file): file.name for file in wanted}
            left = set(open_)
            while left:
                done, left = wait(left, timeout=SHOW_EVERY_S, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                meter.see(time.monotonic(), self._done(listing))
                told = f"fetching: {meter.words()}, {len(open_) - len(left)} of {len(open_)} files"
                waits = next(iter(list(self._waits.values())), "")
                self._show(f"{told}; {waits}" if waits else told, self._done(listing), total)
        finally:
            self._over.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _pause(self, listing: Listing, file: RemoteFile, tries: int, error: HubError) -> None:
        """Wait before the next try; from the second wait in a row on, whoever looks is told what is waited for."""
        if tries > 1:
            said = str(error).partition("; ")[0].removeprefix(f"{listing.repo}: ")
            self._waits[file.name] = f"try {tries + 1} of {TRIES} follows: {said}"
        self._over.wait(wait_before(tries, FIRST_WAIT_S))
        self._waits.pop(file.name, None)

    def _done(self, listing: Listing) -> int:
        return sum(self._local.sizes(listing).values()) + sum(self._local.begun(listing).values())

    def _one(self, listing: Listing, file: RemoteFile) -> None:
        """One file until it is right; waits longer after each failure, anew after progress."""
        from vllm_supervisor.adapters.hub import HubError

        tries, damaged = 0, 0
        part = self._local.part(file)
        while not self._over.is_set():
            before = part.stat().st_size if part.exists() else 0
            try:
                self._hub.download(listing, file, part)
                if self._local.right(file, lambda _: None, part):
                    break
            except HubError as error:
                if not error.again:
                    raise FetchError(str(error), again=False) from None
                here = part.stat().st_size if part.exists() else 0
                if file.size is None or here <= file.size:
                    tries = 1 if here > before else tries + 1
                    if tries >= TRIES:
                        said = f"{error} (given up after {TRIES} tries; call it again)"
                        raise FetchError(said, again=True) from None
                    self._pause(listing, file, tries, error)
                    continue
                # More than there should be: nothing can be appended to that.
            damaged += 1
            part.unlink(missing_ok=True)
            with self._lock:
                self._repaired.append(file.name)
            if damaged >= DAMAGED_TRIES:
                raise FetchError(
                    f"{file.name} has arrived {damaged} times with other bytes than the hub promises: its source is "
                    "damaged, choose another --endpoint or --revision",
                    again=True,
                )
        else:
            return
        self._local.take(file)
        with self._lock:
            self._verified.add(file.name)
            self._local.keep_verified(self._verified)
