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

digits() {
  sweep addition --digits 4 --epochs 8 --grid estimator=IndeCateR-D,RLOO-F,RLOO-S --grid seed=0,1
}

mkdir -p "$FOLDER"
digits > "$FOLDER/addition.log" 2>&1 &

cat << 'TEXT'

1. The paper's gradients: IndeCateR with one draw, the others with 1000
   Expect an exact gradient of the additive f, which is trivial, and little of that where every two
   of the variables interact (pairwise).
TEXT
sweep gradients --variables 12 --categories 3 --repeats 200 \
  --grid function=additive,pairwise --grid estimator=IndeCateR,REINFORCE,RLOO,GS

cat << 'TEXT'

2. Training on 200 bits, of which each has its own small effect (optimisation)
   IndeCateR and RLOO-S have 2 draws, RLOO-F has 800, as many evaluations as IndeCateR. Expect
   IndeCateR and RLOO-F to climb alike: neither has much noise left. RLOO-S is left behind.
TEXT
sweep optimisation --iterations 300 --every 10 --grid estimator=IndeCateR,RLOO-F,RLOO-S \
  --grid seed=0,1

cat << 'TEXT'

3. The first epochs of an autoencoder with 20 bits
   Expect no difference, although the variance of RLOO-S is the largest: it is not yet what slows
   training down. Which estimator is the best depends on f, on q and on when you look.
TEXT
sweep dvae --variables 20 --epochs 3 --grid estimator=IndeCateR,RLOO-S,GS-S

cat << 'TEXT'

4. MNIST addition: four digits are learned from their sum alone
   f is 1 if the sum is right, and 0 at most draws. Expect IndeCateR-D (10 draws for every digit,
   with all neighbours) and RLOO-F (400 draws) to read digits, and RLOO-S (10 draws) to see mostly
   zeros. The more digits, the rarer a right sum, and the more draws RLOO-F needs.
TEXT
wait $! || { cat "$FOLDER/addition.log"; exit 1; }
cat "$FOLDER/addition.log"

"$CATLOG" report "$FOLDER/runs" --output "$FOLDER/report.html" > "$FOLDER/report.log"

cat << 'TEXT'

5. Variance of a gradient at 200 evaluations of f, on eight problems
   RLOO spends them on 200 draws. IndeCateR spends them on a few draws, each with all of its
   neighbours (one variable changed): it sums out one variable at a time, and samples the others.
   Expect IndeCateR to win where variables have separate effects on f (additive: no noise is left),
   and RLOO where all variables act together (parity), or f is zero nearly everywhere (digit-sum).

TEXT
"$PYTHON" experiments/reproduce/demo.py "$FOLDER"
