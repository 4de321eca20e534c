"""Benchmarks, a script for every page that shows numbers; see README.md."""
