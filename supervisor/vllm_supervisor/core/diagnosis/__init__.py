"""Why a start failed: rules as data, and the classifier that applies them to a stream of lines."""

from .classifier import RULES, Candidate, Classifier
from .rule import Kind, Rule, Situation, Tier

__all__ = ["RULES", "Candidate", "Classifier", "Kind", "Rule", "Situation", "Tier"]
