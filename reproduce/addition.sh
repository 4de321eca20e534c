#!/usr/bin/env bash
# Experiment 4, MNIST addition: 4 to 32 digits, 3 seeds, 100 epochs. One GPU; needs CATLOG_DATA or a network for MNIST.
# Arguments go to every sweep: `reproduce/addition.sh --jobs 12` (see docs/reproduction.md on several runs on one GPU).
set -euo pipefail
cd "$(dirname "$0")/.."
CATLOG=${CATLOG:-.venv/bin/catlog}

"$CATLOG" sweep addition --data mnist --epochs 100 --grid digits=16,4,32,8,12,24 \
  --grid estimator=IndeCateR-D,IndeCateR,RLOO-F,RLOO-S --grid seed=0,1,2 "$@"

# ten times as many draws for each variable: 32 digits need them, and the published curves look like it (docs/reproduction.md)
"$CATLOG" sweep addition --data mnist --epochs 100 --estimator IndeCateR-D --grid samples=100,50 --grid digits=32,24,16 --grid seed=0,1,2 "$@"
