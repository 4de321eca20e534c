"""Estimators that sum over some points and sample the rest."""
