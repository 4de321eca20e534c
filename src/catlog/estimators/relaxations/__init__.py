"""Estimators that differentiate through a relaxation of the draw; most are biased."""
