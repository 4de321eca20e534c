#!/usr/bin/env bash
# Experiment 4, MNIST addition: 4 to 32 digits, 3 seeds, 100 epochs.
# Needs one GPU, and CATLOG_DATA or a network. Arguments are passed to every sweep:
# `experiments/reproduce/addition.sh --jobs 12` (see docs/reproduction.md on several runs on one GPU).
set -euo pipefail
cd "$(dirname "$0")/../.."
CATLOG=${CATLOG:-.venv/bin/catlog}

"$CATLOG" sweep addition --data mnist --epochs 100 --grid digits=16,4,32,8,12,24 \
  --grid estimator=IndeCateR-D,IndeCateR,RLOO-F,RLOO-S --grid seed=0,1,2 "$@"

# Ten times as many draws per variable: 32 digits need them, and the published curves seem to have
# used them (docs/reproduction.md).
"$CATLOG" sweep addition --data mnist --epochs 100 --estimator IndeCateR-D \
  --grid samples=100,50 --grid digits=32,24,16 --grid seed=0,1,2 "$@"
