"""What identifies a checkpoint on the disk without reading its weights, and a machine in a network."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path

SMALL = ("config.json", "model.safetensors.index.json", "tokenizer.json", "hf_quant_config.json")
"""Files that decide what the weights mean; each of them takes milliseconds to read."""


def identity(path: Path, hash_of: Callable[[Path], str]) -> dict[str, str]:
    """Digests of the small files, and of names and sizes of the shards; empty for what is no directory.

    Args:
        path: The checkpoint.
        hash_of: The SHA-256 of a file, as hexadecimal digits; empty when it cannot be read.
    """
    digests = {name: hash_of(path / name)[:12] for name in SMALL}
    found = {name: digest for name, digest in digests.items() if digest}
    try:
        shards = sorted((shard.name, shard.stat().st_size) for shard in path.glob("*.safetensors"))
    except OSError:
        return found
    if shards:
        digest = hashlib.sha256(repr(shards).encode()).hexdigest()[:12]
        found["shards"] = f"{len(shards)} of {sum(size for _, size in shards)} bytes ({digest})"
    return found


def own_address(host: str, port: int) -> str:
    """Our address on the way to `host`; empty when there is no way. Nothing is sent."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def only_here(host: str) -> str:
    """The loopback address that a name means on this machine, where others cannot reach it; empty when they can.

    Debian gives the machine's own name 127.0.1.1 in /etc/hosts. An address, and `localhost`, is meant as it is written.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return ""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return ""
    loops = sorted(address for address in found if ipaddress.ip_address(address.partition("%")[0]).is_loopback)
    return loops[0] if loops and len(loops) == len(found) and host != "localhost" else ""
