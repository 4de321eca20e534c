#!/usr/bin/env bash
# When does IndeCateR beat RLOO? Small versions of the paper's experiments on embedded data, two at a
# time, with what to expect of each, and one picture at the end: `experiments/reproduce/demo.sh [folder]`.
set -euo pipefail
cd "$(dirname "$0")/../.."
CATLOG=${CATLOG:-catlog}
PYTHON=${PYTHON:-python3}
FOLDER=${1:-demo}
export OMP_NUM_THREADS=1

sweep() {
  "$CATLOG" sweep "$@" --root "$FOLDER/runs"
}

autoencoder() {
  sweep dvae --variables 20 --epochs 4 --gradient-repeats 0 "$@"
}

long_runs() {
  sweep addition --digits 4 --epochs 8 --grid estimator=IndeCateR-D,RLOO-F,RLOO-S --grid seed=0,1
  autoencoder --estimator RLOO-F --samples 42
}

mkdir -p "$FOLDER"
long_runs > "$FOLDER/long_runs.log" 2>&1 &

cat << 'TEXT'

1. The paper's gradients: IndeCateR with one draw, the others with 1000
   Expect an exact gradient of the additive f, which is trivial, and little of that where every two
   of the variables interact (pairwise).
TEXT
sweep gradients --variables 12 --categories 3 --repeats 200 \
  --grid function=additive,pairwise --grid estimator=IndeCateR,REINFORCE,RLOO,GS

cat << 'TEXT'

2. An autoencoder with 20 bits: training instead of variance
   IndeCateR has 2 draws with all of their neighbours, 42 evaluations of the decoder. RLOO-F spends
   42 evaluations on draws, RLOO-S has 2 draws. Expect IndeCateR to learn as RLOO-F does, in less
   time, because neighbours share the first layer's work, and RLOO-S to stay behind.
TEXT
autoencoder --grid estimator=IndeCateR,RLOO-S

cat << 'TEXT'

3. MNIST addition: four digits are learned from their sum alone
   f is 1 if the sum is right, and 0 at most draws. Expect IndeCateR-D (10 draws for every digit,
   with all neighbours) and RLOO-F (400 draws) to read digits, and RLOO-S (10 draws) to see mostly
   zeros. The more digits, the rarer a right sum, and the more draws RLOO-F needs.
TEXT
wait $! || { cat "$FOLDER/long_runs.log"; exit 1; }
cat "$FOLDER/long_runs.log"

"$CATLOG" report "$FOLDER/runs" --output "$FOLDER/report.html" > "$FOLDER/report.log"

cat << 'TEXT'

4. Variance of a gradient at 200 evaluations of f, on eight problems
   RLOO spends them on 200 draws. IndeCateR spends them on a few draws, each with all of its
   neighbours (one variable changed): it sums out one variable at a time, and samples the others.
   Expect IndeCateR to win where variables have separate effects on f (additive: no noise is left),
   and RLOO where all variables act together (parity), or f is zero nearly everywhere (digit-sum).

TEXT
"$PYTHON" experiments/reproduce/demo.py "$FOLDER"
