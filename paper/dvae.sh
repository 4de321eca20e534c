#!/usr/bin/env bash
# Experiment 3, discrete autoencoders: three data sets, five methods, 2 seeds. One GPU; needs CATLOG_DATA or a network.
# 100 epochs; the methods with 800 draws run 30 on the two large sets. Arguments go to every sweep: `paper/dvae.sh --jobs 4`.
set -euo pipefail
cd "$(dirname "$0")/.."
CATLOG=${CATLOG:-.venv/bin/catlog}

$CATLOG sweep dvae --epochs 100 --grid data=mnist,fashion-mnist --grid estimator=IndeCateR,IndeCateR-Latin,GS-S,RLOO-S \
  --grid seed=0,1 "$@"
$CATLOG sweep dvae --epochs 250 --grid data=omniglot --grid estimator=RLOO-F,GS-F,IndeCateR,IndeCateR-Latin,GS-S,RLOO-S \
  --grid seed=0,1 "$@"
$CATLOG sweep dvae --epochs 30 --grid data=mnist,fashion-mnist --grid estimator=RLOO-F,GS-F --grid seed=0,1 "$@"

# 200 variables of 10 categories (in the published repository, not in the paper)
$CATLOG sweep dvae --categories 10 --epochs 20 --grid data=fashion-mnist --grid estimator=IndeCateR,IndeCateR-D,RLOO-F \
  --grid seed=0,1 "$@"
