"""The memory plan: what of a checkpoint lands on each GPU, and how many tokens fit beside it.

`shape` reads the architecture out of config.json, `rules` tells tensors that every GPU holds from
those that are split, `weights` adds them up, `reserve` estimates what else needs memory, `kvcache`
turns the remainder into tokens, and `planner` puts them together for every tensor-parallel size.
"""
