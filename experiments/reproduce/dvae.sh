#!/usr/bin/env bash
# Experiment 3, discrete autoencoders: three data sets, five methods, 2 seeds.
# 100 epochs, 260 on the smaller Omniglot. Methods with 800 draws run for 20 epochs, 100 on Omniglot.
# Needs one GPU, and CATLOG_DATA or a network. Arguments are passed to every sweep:
# `experiments/reproduce/dvae.sh --jobs 4`.
set -euo pipefail
cd "$(dirname "$0")/../.."
CATLOG=${CATLOG:-.venv/bin/catlog}

"$CATLOG" sweep dvae --data omniglot --epochs 100 --grid estimator=RLOO-F,GS-F --grid seed=0,1 "$@"
"$CATLOG" sweep dvae --data omniglot --epochs 260 --grid estimator=IndeCateR,GS-S,RLOO-S --grid seed=0,1 "$@"
"$CATLOG" sweep dvae --epochs 100 --grid data=mnist,fashion-mnist --grid estimator=IndeCateR,GS-S,RLOO-S --grid seed=0,1 "$@"
"$CATLOG" sweep dvae --epochs 20 --grid data=mnist,fashion-mnist --grid estimator=RLOO-F,GS-F --grid seed=0,1 "$@"

# 200 variables of 10 categories (in the published repository, not in the paper)
"$CATLOG" sweep dvae --data fashion-mnist --categories 10 --epochs 20 --grid estimator=IndeCateR,IndeCateR-D,RLOO-S --grid seed=0,1 "$@"
"$CATLOG" sweep dvae --data fashion-mnist --categories 10 --epochs 5 --estimator RLOO-F --grid seed=0,1 "$@"
