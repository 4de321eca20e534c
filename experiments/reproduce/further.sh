#!/usr/bin/env bash
# Beyond the paper: training of the MNIST autoencoder by wall time, and the addition of 64 digits.
# Needs one GPU, and CATLOG_DATA or a network.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}

"$PYTHON" -m benchmarks.race --only gpu --device cuda
# Long sums need gradients of limited norm. results/paper/addition_64.csv is what
# `catlog export runs/further` writes.
"$PYTHON" -m catlog_experiments sweep addition --data mnist --digits 64 --epochs 300 --clip 1.0 --estimator IndeCateR-D \
  --grid samples=200,100 --grid seed=0,1,2 --root runs/further "$@"
