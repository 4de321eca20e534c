"""Benchmarks, run as modules from the root of the repository (`python -m benchmarks.NAME`).

quality: bias and variance at equal evaluations; bias: the verdicts of the test battery;
log_expectation: the bias of logarithms; advice: the choices of `catlog.advise`; speed: time and
memory; scaling: several processes; interventions: the cost of SCateR's sweep; race: training in
wall time on a GPU; cpu_races: training on one CPU core, and the advice judged by both races; peers:
another library's step.
"""
