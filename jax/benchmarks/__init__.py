"""Measurements of catlog-jax, written to `jax/results`."""
