"""Estimators that sum over some points and sample the rest."""

from .sets import MAPO, SumAndSample, UnorderedSet

__all__ = ["MAPO", "SumAndSample", "UnorderedSet"]
