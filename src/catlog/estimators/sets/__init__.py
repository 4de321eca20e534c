"""Estimators that sum over some points and sample the rest."""

from .mapo import MAPO
from .sum_and_sample import SumAndSample
from .unordered_set import UnorderedSet

__all__ = ["MAPO", "SumAndSample", "UnorderedSet"]
