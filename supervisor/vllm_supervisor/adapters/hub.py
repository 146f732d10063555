"""The hub, by way of huggingface_hub: what a model consists of, and its files, resumed where they broke off."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from vllm_supervisor.core.download import Listing, RemoteFile, shown_address

LISTING_S = 20.0
PIECE_BYTES = 256 << 10
"""What is lost at most when a connection breaks: the library's own 10 MiB are kept in memory until they are whole."""

# The library reads these when it is imported; our progress is our own, and nobody is to be told who downloads.
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_VERBOSITY", "error")


class HubError(Exception):
    """The hub did not give what was asked for; the message is one sentence.

    Attributes:
        again: Whether another try can help.
    """

    def __init__(self, sentence: str, *, again: bool) -> None:
        super().__init__(sentence)
        self.again = again


class Hub:
    """One hub or mirror.

    Args:
        endpoint: Its address; empty for the library's own.
        token: For gated models; empty for none.
    """

    def __init__(self, endpoint: str = "", token: str = "") -> None:
        self._endpoint = endpoint or None
        # False keeps the library from looking for a token of the user who happens to run us.
        self._token: str | bool = token or False

    def listing(self, repo: str, revision: str) -> Listing:
        """Every file of a model with size and hash.

        Raises:
            HubError: there is no such model, it may not be read, or the hub does not answer.
        """
        from huggingface_hub import HfApi

        try:
            api = HfApi(endpoint=self._endpoint, token=self._token)
            info = api.model_info(repo, revision=revision, files_metadata=True, timeout=LISTING_S)
        except Exception as error:  # noqa: BLE001 - of two libraries below it
            raise self._translated(error, repo) from None
        files = [_remote(sibling) for sibling in info.siblings or []]
        if not info.sha or not files:
            raise HubError(f"{repo} has no files at {revision}", again=False)
        return Listing(repo, info.sha, tuple(files))

    def download(self, listing: Listing, file: RemoteFile, part: Path) -> None:
        """One file into `part`, going on behind the bytes that are there.

        The library's own call begins a file anew in every process; a shard of several GB is worth more than that.

        Raises:
            HubError: it did not arrive; what did is in `part`.
        """
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        constants.DOWNLOAD_CHUNK_SIZE = PIECE_BYTES
        try:
            url = hf_hub_url(listing.repo, file.name, revision=listing.commit, endpoint=self._endpoint)
            # Compressed, a file could not be gone on with, and its length would not be its size.
            headers = {**build_hf_headers(token=self._token), "Accept-Encoding": "identity"}
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as opened:
                begun = opened.tell()
                http_get(url, opened, resume_size=begun, headers=headers, expected_size=file.size)
        except Exception as error:  # noqa: BLE001 - of two libraries below it
            raise self._translated(error, f"{listing.repo}: {file.name}") from None

    def _translated(self, error: Exception, what: str) -> HubError:
        """The library's exception as one sentence: its own texts have several lines and no address that was asked."""
        from huggingface_hub import constants, errors

        where = shown_address(self._endpoint or str(constants.ENDPOINT))
        if isinstance(error, errors.GatedRepoError):
            known = "the token that was given does not open it" if self._token else "give a token (--token-file)"
            page = what.partition(":")[0]
            return HubError(f"{what} is gated: accept its licence at {where}/{page}; {known}", again=False)
        if isinstance(error, errors.RepositoryNotFoundError):
            return HubError(f"{where} has no {what}, or it is private and the token does not open it", again=False)
        if isinstance(error, errors.RevisionNotFoundError):
            return HubError(f"{what} has no such revision at {where}", again=False)
        if isinstance(error, (errors.EntryNotFoundError, errors.HFValidationError)):
            return HubError(f"{what}: {_one_line(error)}", again=False)
        if isinstance(error, errors.HfHubHTTPError):
            status = error.response.status_code if error.response is not None else 0
            again = status == 429 or status >= 500 or not status
            advice = "try again later" if again else "is it a hub? name another with --endpoint"
            return HubError(f"{what}: {where} says {status}; {advice}", again=again)
        if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
            return HubError(f"{error.filename}: {error.strerror}", again=False)
        if isinstance(error, ValueError):
            return HubError(f"{what}: {where} does not answer as a hub does; is it one (--endpoint)?", again=True)
        advice = "look after the network or its proxy, or name a mirror with --endpoint"
        return HubError(f"{what}: {where} cannot be reached ({_one_line(error)}); {advice}", again=True)


def _remote(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    sha256 = (lfs.sha256 if hasattr(lfs, "sha256") else lfs.get("sha256", "")) if lfs else ""
    return RemoteFile(sibling.rfilename, sibling.size, sha256, "" if sha256 else (sibling.blob_id or ""))


def _one_line(error: Exception) -> str:
    text = re.sub(r"\[Errno -?\d+\] ", "", " ".join(str(error).split())) or type(error).__name__
    return text[:160]
