"""A stand-in for `vllm serve`: same lines, same processes, same HTTP shapes, same reactions to signals.

Standard library only, so that it starts in well under 150 ms. What it does is data: see `script.py`.
"""
