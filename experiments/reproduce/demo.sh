#!/usr/bin/env bash
# Small versions of the paper's four experiments on embedded data, and the report:
# `experiments/reproduce/demo.sh [folder]`.
set -euo pipefail
CATLOG=${CATLOG:-catlog}
FOLDER=${1:-demo}
export OMP_NUM_THREADS=1
SWEEP=(--root "$FOLDER/runs" --jobs "${JOBS:-2}")

gradients() {
  "$CATLOG" sweep gradients --variables "$1" --categories "$2" --repeats 200 --grid function=additive,pairwise \
    --grid estimator=IndeCateR,REINFORCE,RLOO,GS "${SWEEP[@]}"
}
gradients 12 3
gradients 6 10
gradients 3 100
"$CATLOG" sweep optimisation --iterations 300 --every 20 --grid estimator=GS-F,RLOO-F,IndeCateR,RLOO-S --grid seed=0,1 "${SWEEP[@]}"
"$CATLOG" sweep addition --digits 4 --epochs 10 --grid estimator=IndeCateR-D,IndeCateR,RLOO-F,RLOO-S --grid seed=0,1 "${SWEEP[@]}"
"$CATLOG" sweep dvae --variables 20 --epochs 4 --grid estimator=IndeCateR,GS-S,RLOO-S --grid seed=0,1 "${SWEEP[@]}"
"$CATLOG" sweep dvae --variables 20 --epochs 4 --samples 80 --grid estimator=GS-F,RLOO-F "${SWEEP[@]}"
"$CATLOG" report "$FOLDER/runs" --output "$FOLDER/report.html"
