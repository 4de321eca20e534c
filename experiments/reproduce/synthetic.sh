#!/usr/bin/env bash
# Experiments 1 and 2: gradients of three sizes, and the optimisation of 200 bits with 10 seeds.
# Runs on any machine. Arguments are passed to every sweep: `experiments/reproduce/synthetic.sh --jobs 4`.
set -euo pipefail
cd "$(dirname "$0")/../.."
CATLOG=${CATLOG:-.venv/bin/catlog}

gradients() {
  "$CATLOG" sweep gradients --variables "$1" --categories "$2" --device cpu --grid function=additive,pairwise \
    --grid estimator=IndeCateR,IndeCateR-Latin,REINFORCE,RLOO,GS "${@:3}"
}
gradients 12 3 "$@"
gradients 6 10 "$@"
gradients 3 100 "$@"

# Each variable follows its gradient; with `--update published`, all follow that of the first
# variable, as in the published code.
"$CATLOG" sweep optimisation --device cpu --grid estimator=GS-F,RLOO-F,IndeCateR,RLOO-S --grid seed=0,1,2,3,4,5,6,7,8,9 "$@"
"$CATLOG" sweep optimisation --device cpu --update published --no-anneal \
  --grid estimator=GS-F,RLOO-F,IndeCateR,RLOO-S --grid seed=0,1,2,3,4,5,6,7,8,9 "$@"
