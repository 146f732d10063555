"""`fetch`: a model from the hub, resumed, verified and repaired; or only verified."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.core.exits import NOPERM, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vllm_supervisor.adapters.hub import Hub
    from vllm_supervisor.adapters.local_files import LocalFiles
    from vllm_supervisor.adapters.lock import InstanceLock
    from vllm_supervisor.core.download import Listing

    from .fetching import Fetcher

HELP = "download a model, go on where it broke off, verify and repair it"
DAMAGED = 1
LISTING_TRIES = 4


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "fetch",
        help=HELP,
        description="Downloads what a directory lacks of a model, several files at once, and verifies size and hash of "
        "each against the hub's. A broken download goes on where it stopped; of a damaged one only the damaged files "
        "are fetched again. When the hub cannot be reached, a complete directory is enough (sizes only).",
        epilog="Exit codes: 0 whole, 1 not whole (--verify, --offline), 64 usage, 75 broken off (call it again), "
        "77 the directory is another user's, 78 it cannot work (no such model, no access, no space).",
    )
    parser.add_argument("model", metavar="MODEL", help="its name at the hub, such as nvidia/Kimi-K2.5-NVFP4")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="directory of the checkpoint")
    parser.add_argument(
        "--revision", metavar="R", help="branch, tag or commit (default: the commit that DIR holds already, or main)"
    )
    parser.add_argument("--verify", action="store_true", help="only read what is there and compare the hashes")
    parser.add_argument("--offline", action="store_true", help="never ask the hub; without --verify compare sizes only")
    parser.add_argument("--rate", metavar="SIZE", help="bound the reading of what is there, such as 200MiB (a second)")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="files at once (%(default)s)")
    parser.add_argument("--endpoint", default="", metavar="URL", help="a mirror (default: $HF_ENDPOINT, or the hub)")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="for gated models (default: the credential hub-token, $HF_TOKEN)",
    )


def run(args: argparse.Namespace) -> int:
    """Fetch or verify; the exit code says whether the directory is whole."""
    from vllm_supervisor.adapters.local_files import LocalFiles
    from vllm_supervisor.adapters.lock import acquire

    wrong = _wrong(args)
    if wrong:
        return _said(wrong, ExitCode.USAGE)
    local = LocalFiles(args.to.absolute())
    lock: InstanceLock | int | None = None
    try:
        lock = acquire(local.prepare())
    except PermissionError as error:
        return _closed(error, args)
    except OSError as error:
        # A checkpoint may be mounted so that nobody writes it: then there is nobody to be locked out either.
        local.read_only = error.errno == errno.EROFS and (args.verify or _offline(args))
        if not local.read_only:
            return _said(f"{args.to} cannot be written: {error.strerror}", ExitCode.PERMANENT)
    if isinstance(lock, int):
        return _said(f"pid {lock} works on {args.to} already", ExitCode.TRANSIENT)
    try:
        return _locked(args, local)
    except KeyboardInterrupt:
        _said("interrupted; the same command goes on where it stopped", 130)
        sys.stderr.flush()
        local.hand_over()
        # The threads of a transfer hear no interrupt, and there is nothing of theirs that a kill could hurt.
        os._exit(130)
    finally:
        local.hand_over()
        if lock is not None:
            lock.release()


def _offline(args: argparse.Namespace) -> bool:
    return args.offline or os.environ.get("HF_HUB_OFFLINE", "") in {"1", "true", "yes", "on"}


def _wrong(args: argparse.Namespace) -> str:
    """What cannot be meant, before anything is written; empty when all can."""
    from vllm_supervisor.core.download import is_address, is_model_name, shown_address
    from vllm_supervisor.core.plan.sizes import parse_size

    if not is_model_name(args.model):
        return f"MODEL is a name at the hub such as nvidia/Kimi-K2.5-NVFP4, not {args.model!r}"
    if args.workers < 1:
        return f"--workers must be at least 1, not {args.workers}"
    if args.rate and not parse_size(args.rate):
        return f"--rate takes a size such as 200MiB, not {args.rate!r}"
    for name, address in (("--endpoint", args.endpoint), ("HF_ENDPOINT", os.environ.get("HF_ENDPOINT", ""))):
        if address:
            good = is_address(address)
            return (
                ""
                if good
                else f"{name} must be an address such as https://huggingface.co, not {shown_address(address)!r}"
            )
    return ""


def _locked(args: argparse.Namespace, local: LocalFiles) -> int:
    from vllm_supervisor.adapters.hub import Hub, HubError
    from vllm_supervisor.adapters.local_files import Pace
    from vllm_supervisor.core.download import unsafe
    from vllm_supervisor.core.plan.sizes import parse_size

    from .fetching import Fetcher, FetchError
    from .showing import Shown

    rate = parse_size(args.rate) if args.rate else None
    try:
        hub = Hub(args.endpoint or os.environ.get("HF_ENDPOINT", ""), _token(args.token_file))
    except OSError as error:
        return _said(f"{args.token_file} cannot be read: {error.strerror}", ExitCode.USAGE)
    kept = local.listing()
    if kept is not None and kept.repo != args.model:
        return _said(f"{args.to} holds {kept.repo}, not {args.model}; choose another directory", ExitCode.USAGE)
    # A directory stays at its commit until another revision is asked for: an unattended call is no update.
    args.revision = args.revision or (kept.commit if kept is not None else "main")
    listing, offline = kept, _offline(args)
    if not offline:
        try:
            listing = _listing(hub, args, patient=kept is None)
        except HubError as error:
            if kept is None or not error.again:
                return _said(str(error), ExitCode.TRANSIENT if error.again else ExitCode.PERMANENT)
            _said(f"{error}; going by the listing that was kept", 0)
            offline = True
    if listing is None:
        return _said(f"{args.to} holds no download of ours; without the hub there is nothing to compare", DAMAGED)
    if unsafe(listing):
        return _said(f"the hub names a file outside of the directory: {unsafe(listing)!r}", ExitCode.PERMANENT)
    fetcher = Fetcher(hub, local, Pace(rate), args.workers, Shown())
    try:
        local.keep_listing(listing)
        if args.verify:
            return _told(fetcher.verify(listing), listing, args, "hash")
        if offline:
            return _told(_by_size(local, listing), listing, args, "size")
        return _fetched(fetcher, listing, args)
    except FetchError as error:
        return _said(str(error), ExitCode.TRANSIENT if error.again else ExitCode.PERMANENT)
    except PermissionError as error:
        return _closed(error, args)
    except OSError as error:
        return _said(f"{error.filename or args.to}: {error.strerror}", ExitCode.PERMANENT)


def _closed(error: PermissionError, args: argparse.Namespace) -> int:
    return _said(f"{error.filename or args.to} is closed to you: run as its owner or as root", NOPERM)


def _listing(hub: Hub, args: argparse.Namespace, *, patient: bool) -> Listing:
    """The hub's listing; asked for a few times more when nothing can be done without it."""
    from vllm_supervisor.adapters.hub import HubError
    from vllm_supervisor.core.download import wait_before

    for tries in range(1, LISTING_TRIES):
        try:
            return hub.listing(args.model, args.revision)
        except HubError as error:
            if not error.again or not patient:
                raise
            time.sleep(wait_before(tries, 1.0))
    return hub.listing(args.model, args.revision)


def _fetched(fetcher: Fetcher, listing: Listing, args: argparse.Namespace) -> int:
    began = time.monotonic()
    done = fetcher.run(listing)
    from vllm_supervisor.core.words import duration

    from .showing import Shown

    Shown.end()
    for name in done.repaired:
        print(f"repaired   {name}")
    many = f"{len(done.fetched)} of {len(listing.files)} files fetched in {duration(time.monotonic() - began)}"
    print(f"{args.to} is whole: {listing.repo} at {listing.commit[:12]}, {many}")
    return ExitCode.OK


def _by_size(local: LocalFiles, listing: Listing) -> dict[str, str]:
    from vllm_supervisor.core.download import Standing, standings

    found = standings(listing, local.sizes(listing), ())
    return {name: standing for name, standing in found.items() if standing is not Standing.UNVERIFIED}


def _told(wrong: Mapping[str, str], listing: Listing, args: argparse.Namespace, by: str) -> int:
    from .showing import Shown

    Shown.end()
    for name, standing in sorted(wrong.items()):
        print(f"{standing}: {name}")
    if wrong:
        hint = f"`vllm-supervisor fetch {listing.repo} --to {args.to}` fetches no more than that"
        are = "is" if len(wrong) == 1 else "are"
        return _said(f"{len(wrong)} of {len(listing.files)} files {are} not whole; {hint}", DAMAGED)
    print(f"all {len(listing.files)} files have the right {by}")
    return ExitCode.OK


def _token(path: Path | None) -> str:
    if path is not None:
        return path.read_text(encoding="utf-8").strip()
    for credential in _credentials():
        if credential.is_file():
            return credential.read_text(encoding="utf-8").strip()
    return os.environ.get("HF_TOKEN", "")


def _credentials() -> Iterator[Path]:
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if directory:
        yield Path(directory) / "hub-token"


def _said(sentence: str, code: int) -> int:
    from .showing import Shown

    Shown.end()
    print(f"vllm-supervisor fetch: {sentence}", file=sys.stderr)
    return code
