#!/usr/bin/env bash
# The long runs behind three claims of the paper: 200 variables of 10 categories (4 minutes of an
# H200), the lowest test bound on Omniglot (16 minutes), overfitting on MNIST and Fashion-MNIST (8
# minutes with IndeCateR, 40 more with RLOO-F). Needs CATLOG_DATA or a network. Arguments are passed to
# every sweep: `experiments/reproduce/claims.sh --limit 420 --jobs 1`; the same command continues the sweep. Then
# `python -m benchmarks.protocol merge runs/protocol.csv` adds the rows to results/paper/dvae.csv.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}

for claim in claim-categories claim-omniglot claim-overfitting; do
  "$PYTHON" -m benchmarks.protocol sweep --parts "$claim" "$@"
done
