# Every target makes its own environment in .venv: on a fresh machine, `make demo` or `make test` is the only command.
PYTHON ?= python3
BIN := .venv/bin
ESTIMATOR ?= examples/own_estimator.py:TwoHalves
KILLS ?= 3
# Tests with targets of their own.
ELSEWHERE := --ignore=tests/peers --ignore=tests/scale --ignore=tests/kills --ignore=tests/compiled

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit shapes test-peers test-scale test-kills test-compile test-versions battery coverage docs bench suite clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[experiments,dev]'
	touch $@

demo: .venv/ready  ## the quickstart, then a small version of the paper's four experiments with a report (under 5 minutes)
	$(BIN)/python examples/quickstart.py
	CATLOG=$(BIN)/catlog bash paper/demo.sh demo

test: lint types unit shapes  ## everything that CI checks

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

unit: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 $(ELSEWHERE)

# The same battery with every annotated shape checked at run time.
shapes: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 src/catlog/testing/test_battery.py -k "unbiased or promised" \
		--jaxtyping-packages=catlog,beartype.beartype

.venv/peers: .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[peers]'
	touch $@

test-peers: .venv/peers  ## our estimators against other libraries, which it installs (docs/peers.md)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/peers

.venv/scale: .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[ray]'
	touch $@

test-scale: .venv/scale  ## sweeps on a Ray cluster of two workers, one of them killed; torchrun (docs/scaling.md; some minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/scale

test-kills: .venv/ready  ## processes killed at random instants, KILLS times each (3; make test-kills KILLS=30 takes half an hour)
	KILLS=$(KILLS) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s tests/kills

test-compile: .venv/ready  ## every estimator, then every setting with every kind of distribution, compiled by Inductor (an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/compiled

# One environment per version of PyTorch, made once: the oldest that pyproject.toml allows, with the oldest of all other packages
# that it names, and the newest there is.
OLDEST := 2.6.0
NEWEST := 2.15.0

.versions/$(OLDEST)/ready: LIMITS := -c .github/oldest.txt
.versions/%/ready: pyproject.toml .github/oldest.txt
	$(PYTHON) -m venv .versions/$*
	.versions/$*/bin/python -m pip install --quiet $(LIMITS) torch==$* -e '.[experiments,dev]'
	touch $@

test-versions: .versions/$(OLDEST)/ready .versions/$(NEWEST)/ready  ## compiled estimators and the battery with the oldest and the newest PyTorch
	for version in $(OLDEST) $(NEWEST); do \
		OMP_NUM_THREADS=1 .versions/$$version/bin/python -m pytest -q -n 2 -W default tests/estimators/test_compile.py tests/compiled/test_inductor.py \
			src/catlog/testing/test_battery.py tests/package/test_import.py || exit 1; \
	done

battery: .venv/ready  ## judge an estimator of your own: make battery ESTIMATOR=FILE.py:CLASS
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q src/catlog/testing/test_battery.py --estimator $(ESTIMATOR)

coverage: .venv/ready  ## the tests with coverage: a table, and htmlcov/index.html
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 $(ELSEWHERE) --cov=catlog --cov-report=term --cov-report=html

.venv/docs: .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

# Formulas are set by a file of MathJax's, so that pages need no network; without npm they take it from a CDN.
docs/_build/npm/node_modules/mathjax:
	-npm install --silent --no-audit --no-fund --prefix docs/_build/npm mathjax@3

docs: .venv/docs docs/_build/npm/node_modules/mathjax  ## the site: docs/_build/html/index.html; warnings, broken links and sentences that results/ does not support are errors
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q docs/checks
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -E -W --keep-going docs docs/_build/html

bench: .venv/ready  ## time, memory and variance, written to results/ (about 20 minutes on two cores)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/variance.py
	$(BIN)/python benchmarks/control_variates.py
	$(BIN)/python benchmarks/contest.py

suite: .venv/ready  ## every estimator on every problem (resumes where it was interrupted)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/suite.py

clean:  ## remove the environment and what was built
	rm -rf .venv .versions build dist demo runs docs/_build docs/api docs/figures docs/gallery htmlcov .coverage .pytest_cache .hypothesis .mypy_cache .ruff_cache
