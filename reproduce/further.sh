#!/usr/bin/env bash
# Beyond the paper: which estimator trains the MNIST autoencoder soonest, in wall time; and the addition of 64 digits.
# One GPU; needs CATLOG_DATA or a network. Then `python docs/make_race.py`.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}

"$PYTHON" benchmarks/race.py --device cuda
# Gradients with a limited norm: long sums. The records go to runs/further/addition.csv; results/paper/addition_64.csv is that file.
"$PYTHON" -m catlog sweep addition --data mnist --digits 64 --epochs 300 --clip 1.0 --estimator IndeCateR-D \
  --grid samples=200,100 --grid seed=0,1,2 --root runs/further "$@"
