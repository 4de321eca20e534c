#!/usr/bin/env bash
# The published protocols of autoencoders (docs/protocol.md). Needs one GPU, and CATLOG_DATA or a
# network. Arguments are passed to the sweep: `experiments/reproduce/protocol.sh --limit 420 --mps` makes the most
# important runs for seven minutes, and the same command continues them. `--parts headline --models 2`
# selects runs.
# Then `python -m benchmarks.protocol merge runs/protocol.csv` adds the table to results/.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}

"$PYTHON" -m benchmarks.protocol sweep "$@"
