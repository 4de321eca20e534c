#!/usr/bin/env bash
# Small versions of the paper's four experiments on embedded data, two at a time, and the report:
# `experiments/reproduce/demo.sh [folder]`.
set -euo pipefail
CATLOG=${CATLOG:-catlog}
FOLDER=${1:-demo}
export OMP_NUM_THREADS=1

sweep() {
  "$CATLOG" sweep "$@" --root "$FOLDER/runs"
}

synthetic() {
  for size in "12 3" "6 10" "3 100"; do
    read -r variables categories <<< "$size"
    sweep gradients --variables "$variables" --categories "$categories" --repeats 200 \
      --grid function=additive,pairwise --grid estimator=IndeCateR,REINFORCE,RLOO,GS
  done
  sweep optimisation --iterations 300 --every 20 --grid estimator=GS-F,RLOO-F,IndeCateR,RLOO-S --grid seed=0,1
}

digits() {
  sweep addition --digits 4 --epochs 10 --grid estimator=IndeCateR-D,IndeCateR,RLOO-F,RLOO-S --grid seed=0,1
}

autoencoders() {
  sweep dvae --variables 20 --epochs 4 --grid estimator=IndeCateR,GS-S,RLOO-S --grid seed=0,1
  sweep dvae --variables 20 --epochs 4 --samples 80 --grid estimator=GS-F,RLOO-F
}

mkdir -p "$FOLDER"
digits > "$FOLDER/addition.log" 2>&1 &
synthetic
autoencoders
wait $! || { cat "$FOLDER/addition.log"; exit 1; }
cat "$FOLDER/addition.log"
"$CATLOG" report "$FOLDER/runs" --output "$FOLDER/report.html"
