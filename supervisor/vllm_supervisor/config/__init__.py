"""The settings, declared once; documentation and the example file come from the declarations."""

from .envfile import load_env, parse_env
from .load import load, parse
from .problems import Problem
from .settings import Settings

__all__ = ["Problem", "Settings", "load", "load_env", "parse", "parse_env"]
