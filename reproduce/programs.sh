#!/usr/bin/env bash
# Programs over handwritten digits, each trained on the program's results alone, 3 seeds:
# `reproduce/programs.sh [numbers-4|numbers-15|numbers-100|numbers-200|sums|mnist-r|sum-64]...`.
# Needs one GPU, and CATLOG_DATA or a network. SWEEP_OPTIONS are passed to every sweep, such as
# SWEEP_OPTIONS="--jobs 3" (see docs/reproduction.md on several runs on one GPU).
# Then `catlog export runs/programs --thin 5 --output results/programs/programs.csv`.
set -euo pipefail
cd "$(dirname "$0")/.."
CATLOG=${CATLOG:-.venv/bin/catlog}
ROOT=${ROOT:-runs/programs}
SEEDS=${SEEDS:-10,11,12}

sweep() { # sweep TABLE settings...
  local table=$1
  shift
  # shellcheck disable=SC2086
  $CATLOG sweep programs --data mnist --root "$ROOT" --output "$ROOT/$table.csv" \
    --grid "seed=$SEEDS" ${SWEEP_OPTIONS:-} "$@"
}

# The sum of two numbers of N digits: IndeCateR with an expectation per digit of the sum, RLOO with
# as many evaluations (20 draws with all neighbours, and 500 for the values), per digit and for the
# whole sum.
numbers() { # numbers N batch epochs evaluations
  local settings=(--program numbers --network conv --digits "$1" --batch "$2" --epochs "$3")
  sweep "numbers-$1-indecater" "${settings[@]}" \
    --estimator IndeCateR --samples 20 --options draws=latin --value-samples 500
  sweep "numbers-$1-rloo" "${settings[@]}" --estimator RLOO --samples "$4"
  sweep "numbers-$1-whole" "${settings[@]}" --estimator RLOO --samples "$4" --whole
}
numbers-4() { numbers 4 10 20 1960; }
numbers-15() { numbers 15 4 20 5920; }
numbers-100() { numbers 100 2 60 36520; }
numbers-200() { numbers 200 1 80 72520; }

# The sum of M digits with 10 M and 100 M evaluations.
sums() {
  local digits sequences
  for digits in 16 8 12; do
    sequences=$((digits == 16 ? 3750 : 5000))
    local settings=(--program sum --digits $digits --sequences $sequences --batch 16 --epochs 100
      --no-decay)
    sweep "sum-$digits-indecater-d" "${settings[@]}" --estimator IndeCateR-D --grid samples=10,1
    sweep "sum-$digits-rloo" "${settings[@]}" --estimator RLOO \
      --grid samples=$((100 * digits)),$((10 * digits))
  done
}

# The eleven programs of MNIST-R with at most 100 evaluations, as they should be, and with
# probabilities in the place of logits.
mnist-r() {
  local settings=(--network conv --sequences 5000 --batch 16 --epochs 50 --learning-rate 1e-4
    --no-decay --grid double_softmax=False,True)
  sweep mnist-r-4 "${settings[@]}" --samples 2 --grid program=sum-4
  sweep mnist-r-8 "${settings[@]}" --samples 1 --grid program=count-3-4
  sweep mnist-r-3 "${settings[@]}" --samples 3 --grid program=sum-3,add-sub
  sweep mnist-r-2 "${settings[@]}" --samples 5 \
    --grid program=sum-2,mult-2,mod-2,add-mod-3,less-than,equal
  sweep mnist-r-1 "${settings[@]}" --samples 10 --grid program=not-3-or-4
}

# The sum of 64 digits, with images used again.
sum-64() {
  sweep sum-64 --program sum --digits 64 --sequences 6000 --batch 16 --epochs 60 --network conv \
    --estimator IndeCateR-D --samples 100
}

for section in "${@:-numbers-4 numbers-15 numbers-100 numbers-200 sums mnist-r sum-64}"; do
  for name in $section; do "$name"; done
done
