"""The GPUs through NVML, read in a process of its own: `python -m vllm_supervisor.adapters.nvml`.

A call that is stuck in the driver then stops nothing but that process. It prints one report a line,
as `core.gpu.parse_report` reads it. It imports little, so that it stays small, and nothing but
itself of this package.
"""
