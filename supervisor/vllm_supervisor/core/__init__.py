"""Decisions: values in, values out. Imports no clock, no I/O and no third party."""
