"""Benchmarks, run as modules from the root of the repository (`python -m benchmarks.NAME`).

Each docstring says what is measured. results/README.md lists the commands and the files that they
write. `settings`, `tables`, `turns`, `command_line` and `quality.measuring` are what they share.
"""
