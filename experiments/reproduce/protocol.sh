#!/usr/bin/env bash
# The published protocols of autoencoders (docs/race.md). Needs one GPU, and CATLOG_DATA or a
# network. `python -m benchmarks.protocol --help` says how to choose runs; complete ones are skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}

"$PYTHON" -m benchmarks.protocol --only headline rivals two best categories "$@" |
  xargs -L 1 "$PYTHON" -m catlog_experiments
