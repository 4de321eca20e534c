"""Estimators that sum out one variable at a time: the CatLog-Derivative trick."""
