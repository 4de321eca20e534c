"""The sections of benchmarks/speed.py: each module has functions ``(bench) -> rows`` of one table."""
