#!/usr/bin/env bash
# Experiment 3, discrete autoencoders: three data sets, five methods, 2 seeds. One GPU; needs CATLOG_DATA or a network.
# 100 epochs or more (Omniglot is smaller: 260); the methods with 800 draws run 20 on the two large sets and 100 on Omniglot.
# Arguments go to every sweep: `reproduce/dvae.sh --jobs 4`.
set -euo pipefail
cd "$(dirname "$0")/.."
CATLOG=${CATLOG:-.venv/bin/catlog}

"$CATLOG" sweep dvae --data omniglot --epochs 100 --grid estimator=RLOO-F,GS-F --grid seed=0,1 "$@"
"$CATLOG" sweep dvae --data omniglot --epochs 260 --grid estimator=IndeCateR,GS-S,RLOO-S --grid seed=0,1 "$@"
"$CATLOG" sweep dvae --epochs 100 --grid data=mnist,fashion-mnist --grid estimator=IndeCateR,GS-S,RLOO-S --grid seed=0,1 "$@"
"$CATLOG" sweep dvae --epochs 20 --grid data=mnist,fashion-mnist --grid estimator=RLOO-F,GS-F --grid seed=0,1 "$@"

# 200 variables of 10 categories (in the published repository, not in the paper)
"$CATLOG" sweep dvae --data fashion-mnist --categories 10 --epochs 20 --grid estimator=IndeCateR,IndeCateR-D,RLOO-S --grid seed=0,1 "$@"
"$CATLOG" sweep dvae --data fashion-mnist --categories 10 --epochs 5 --estimator RLOO-F --grid seed=0,1 "$@"
