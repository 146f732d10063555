"""The reading helper: a process of its own that fills the page cache ahead of the engine.

`client` is the daemon's end of it and what a command uses, `__main__` the process. A file system
that hangs can then hold up neither the loop nor a stop. What it reads is never the engine's progress.
"""
