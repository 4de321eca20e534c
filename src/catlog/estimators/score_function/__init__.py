"""Estimators that score whole draws: REINFORCE and its baselines."""
