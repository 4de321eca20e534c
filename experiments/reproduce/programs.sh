#!/usr/bin/env bash
# Programs over handwritten digits, each trained on the program's results alone, 3 seeds.
# Needs one GPU, and CATLOG_DATA or a network. Arguments are passed to every sweep:
# `experiments/reproduce/programs.sh --jobs 12` (see docs/reproduction.md on several runs on one GPU). SECTIONS
# names some of the parts: `SECTIONS="numbers-100 mnist-r" experiments/reproduce/programs.sh`.
# Then `catlog export runs/programs --output results/programs/programs.csv`.
set -euo pipefail
cd "$(dirname "$0")/../.."
CATLOG=${CATLOG:-.venv/bin/catlog}
SECTIONS=${SECTIONS:-numbers-4 numbers-15 numbers-100 numbers-200 numbers-deep sums mnist-r sum-64}
MORE=("$@")

sweep() {
  "$CATLOG" sweep programs --data mnist --root runs/programs --grid "seed=${SEEDS:-10,11,12}" "$@" \
    "${MORE[@]}"
}

# The sum of two numbers of N digits: IndeCateR with an expectation per digit of the sum, RLOO with
# as many evaluations (the draws with all neighbours, and 500 for the values), per digit and for the
# whole sum.
numbers() { # numbers N batch epochs draws learning-rate [settings of all methods]
  local settings=(--program numbers --network "${NETWORK:-conv}" --digits "$1" --batch "$2" --epochs "$3"
    --learning-rate "$5" "${@:6}")
  local evaluations=$(($4 * (1 + 9 * 2 * $1) + 500))
  sweep "${settings[@]}" \
    --estimator IndeCateR --samples "$4" --options sampling=latin --value-samples 500
  sweep "${settings[@]}" --estimator RLOO --samples "$evaluations"
  sweep "${settings[@]}" --estimator RLOO --samples "$evaluations" --whole
}
numbers-4() { numbers 4 10 20 20 1e-3; }
numbers-15() { numbers 15 4 20 20 1e-3; }
# Some runs of 100 digits stay at the start, where every digit is equally likely, or learn every
# digit plus 5. They start again with new weights. No earlier trial used these seeds. One series has
# shifted images.
numbers-100() {
  SEEDS=30,31,32 numbers 100 1 80 50 3e-4 --restart 20
  SEEDS=30,31,32 numbers 100 1 80 50 3e-4 --restart 20 --shift 2
}
numbers-200() { numbers 200 1 80 20 1e-3; }
# A deeper network, with all images as published, and shifted.
numbers-deep() {
  NETWORK=deep SEEDS=50,51,52 numbers 100 2 100 20 1e-3 --restart 5
  NETWORK=deep SEEDS=40,41,42 numbers 100 2 60 20 1e-3 --restart 20
  NETWORK=deep SEEDS=40,41,42 numbers 100 2 60 20 1e-3 --restart 20 --shift 2
  NETWORK=deep SEEDS=40,41,42 numbers 200 1 60 20 1e-3 --restart 20
}

# The sum of M digits with 10 M and 100 M evaluations.
sums() {
  local digits sequences
  for digits in 16 8 12; do
    sequences=$((digits == 16 ? 3750 : 5000))
    local settings=(--program sum --digits $digits --sequences $sequences --batch 16 --epochs 100
      --no-decay)
    sweep "${settings[@]}" --estimator IndeCateR-D --grid samples=10,1
    sweep "${settings[@]}" --estimator RLOO \
      --grid samples=$((100 * digits)),$((10 * digits))
  done
}

# The eleven programs of MNIST-R with at most 100 evaluations: once with the right logits, and once
# with probabilities in place of logits. If 100 evaluations allow only one or two draws with all
# neighbours, one of the draws is used for the value instead.
mnist-r() {
  local settings=(--network conv --sequences 5000 --batch 16 --epochs 50 --learning-rate 1e-4
    --no-decay)
  local both=(--grid double_softmax=False,True)
  sweep "${settings[@]}" "${both[@]}" --samples 1 --value-samples 63 --grid program=sum-4
  sweep "${settings[@]}" "${both[@]}" --samples 1 --value-samples 27 --grid program=count-3-4
  sweep "${settings[@]}" --estimator IndeCateR-D --samples 1 --value-samples 56 --program sum-4
  sweep "${settings[@]}" --estimator IndeCateR-D --samples 1 --value-samples 20 --program count-3-4
  sweep "${settings[@]}" "${both[@]}" --samples 3 --grid program=sum-3,add-sub
  sweep "${settings[@]}" "${both[@]}" --samples 5 \
    --grid program=sum-2,mult-2,mod-2,add-mod-3,less-than,equal
  sweep "${settings[@]}" "${both[@]}" --samples 10 --grid program=not-3-or-4
  sweep "${settings[@]}" --estimator RLOO --samples 100 --grid \
    program=sum-4,count-3-4,sum-3,add-sub,sum-2,mult-2,mod-2,add-mod-3,less-than,equal,not-3-or-4
}

# The sum of 64 digits, with reused images.
sum-64() {
  sweep --program sum --digits 64 --sequences 6000 --batch 16 --epochs 60 --network conv \
    --estimator IndeCateR-D --samples 100
}

for section in $SECTIONS; do "$section"; done
