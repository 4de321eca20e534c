#!/usr/bin/env bash
# The long runs behind three claims of the paper: 200 variables of 10 categories, the lowest test
# bound on Omniglot, and overfitting on MNIST and Fashion-MNIST. Needs a GPU, and CATLOG_DATA or a
# network.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}

"$PYTHON" -m benchmarks.protocol --only claims "$@" |
  xargs -L 1 "$PYTHON" -m catlog_experiments
