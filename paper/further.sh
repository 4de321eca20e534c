#!/usr/bin/env bash
# Beyond the paper. MNIST autoencoder to a negated train ELBO of 100: control variates against GS-S; addition of 64 digits.
# One GPU; needs CATLOG_DATA or a network. Arguments go to every sweep: `paper/further.sh --jobs 4`.
set -euo pipefail
cd "$(dirname "$0")/.."
CATLOG=${CATLOG:-.venv/bin/catlog}

$CATLOG sweep dvae --data mnist --epochs 150 --estimator SlopeCateR --grid samples=8,4,16 --grid seed=0,1 "$@"
$CATLOG sweep dvae --data mnist --epochs 200 --estimator GS-S --grid seed=0,1 "$@"
$CATLOG sweep dvae --data mnist --epochs 100 --grid estimator=IndeCateR-Latin,IndeCateR-Taylor --grid seed=0,1 "$@"

# gradients with a limited norm: long sums
$CATLOG sweep addition --data mnist --digits 64 --epochs 300 --clip 1.0 --estimator IndeCateR-D --grid samples=200,100 --grid seed=0,1,2 "$@"
$CATLOG sweep addition --data mnist --digits 32 --epochs 100 --clip 1.0 --estimator IndeCateR-D --samples 50 --grid seed=0,1,2 "$@"
