"""Why a start failed: rules as data, and the classifier that applies them to a stream of lines."""

from .classifier import RULES, UNKNOWN_LINE_ADVICE, UNKNOWN_SUMMARY, Candidate, Classifier
from .rule import Kind, Rule, Situation, Tier, of_engine

__all__ = [
    "RULES",
    "UNKNOWN_LINE_ADVICE",
    "UNKNOWN_SUMMARY",
    "Candidate",
    "Classifier",
    "Kind",
    "Rule",
    "Situation",
    "Tier",
    "of_engine",
]
