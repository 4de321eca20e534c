"""Bias and variance of estimators at equal evaluations of f; every module measures one table."""
