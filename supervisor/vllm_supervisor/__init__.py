"""Supervises `vllm serve` as a systemd service.

The layers, from the inside out: `core` decides (values in, values out), `config` declares the
settings, `adapters` reach one outside facility each, `daemon` is the loop that joins them, and
`commands` are the verbs of the command line.
"""

__version__ = "0.1.0"
