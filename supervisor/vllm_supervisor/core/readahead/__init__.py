"""Reading a checkpoint into memory before the engine asks for it: what, how much, when, and why not.

An engine imports and connects for 15 to 60 s before it reads its first weight, and then reads them
through page faults; the disk is idle in the one and badly used in the other. Everything here is a
decision over values; `adapters.readahead` looks and reads.
"""
