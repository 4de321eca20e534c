# Every target creates the environment .venv that it needs, so `make test` works on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
ESTIMATOR ?= examples/own_estimator.py:TwoHalves
KILLS ?= 3
# Tests that have separate targets.
ELSEWHERE := --ignore=tests/peers --ignore=tests/scale --ignore=tests/compiled \
	--ignore=experiments/tests/slow \
	--ignore=tests/benchmarks --ignore=tests/pyro_elbo --ignore=src/catlog/pyro
# Tests that run once, with every annotated shape checked: every estimator on every distribution.
SHAPED := tests/frozen

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit shapes test-peers test-pyro test-transformers test-scale \
	test-benchmarks test-kills test-compile test-versions planted-bugs battery coverage docs bench \
	suite clean test-jax

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

.venv/ready: pyproject.toml experiments/pyproject.toml kernels/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' -e ./experiments -e ./kernels
	touch $@

demo: .venv/ready  ## the quickstart, then when IndeCateR beats RLOO: small versions of the paper's experiments, and a picture (under 5 minutes)
	$(BIN)/python examples/quickstart.py
	CATLOG=$(BIN)/catlog PYTHON=$(BIN)/python bash experiments/reproduce/demo.sh demo

test: lint types unit shapes  ## everything that CI checks

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

unit: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadgroup $(ELSEWHERE) $(SHAPED:%=--ignore=%)

# The tests above, and tests of functions with tables or many outputs and of dependent variables.
shapes: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --jaxtyping-packages=catlog,beartype.beartype \
		$(SHAPED) src/catlog/testing/test_outputs.py tests/functions/test_functions.py \
		tests/functions/test_known.py tests/distributions/test_structured.py \
		tests/distributions/test_checklist.py \
		-k "frozen or test_log_prob or table or (of_its_own and event) or \
		(unbiased and not test_outputs and not (test_known and (RLOO or CritiCateR or DoubleCV)))"

.venv/peers: .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[peers]'
	touch $@

test-peers: .venv/peers  ## compare our estimators with other libraries, which it installs (docs/peers.md)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/peers

.venv/pyro: .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[pyro]'
	touch $@

test-pyro: .venv/pyro  ## the ELBO for Pyro, which it installs (docs/from_pyro.md)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/pyro_elbo src/catlog/pyro \
		"tests/docs/test_docs.py::test_code_on_pages_runs[from_pyro]"

# JAX has an environment of its own, without torch.
.venv-jax/ready: jax/pyproject.toml jax/constraints.txt
	$(PYTHON) -m venv .venv-jax
	.venv-jax/bin/python -m pip install --quiet -c jax/constraints.txt -e './jax[dev]'
	touch $@

test-jax: .venv-jax/ready  ## the package catlog_jax in jax/: types and tests, in an environment without torch
	cd jax && ../.venv-jax/bin/mypy
	cd jax && ../.venv-jax/bin/python -m pytest -q -n 2

.venv/transformers: .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[transformers]'
	touch $@

test-transformers: .venv/transformers  ## compare catlog.CausalLM with brute force on small models of transformers, which it installs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/language_models/test_causal_lm.py

.venv/scale: .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[ray]' -e './experiments[ray]'
	touch $@

test-scale: .venv/scale  ## sweeps on a Ray cluster, and torchrun (docs/scaling.md; some minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/scale experiments/tests/slow/test_ray.py

test-benchmarks: .venv/ready  ## run the benchmarks in their quick modes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/benchmarks

test-kills: .venv/ready  ## kill processes at random instants, KILLS times each (3; 30 take half an hour)
	KILLS=$(KILLS) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s experiments/tests/slow/test_kills.py

test-compile: .venv/ready  ## compile every estimator, setting and kind of distribution by Inductor (an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/compiled

# One environment per version of PyTorch: the oldest that pyproject.toml allows, with the oldest
# versions of all other packages, and the newest one.
OLDEST := 2.6.0
NEWEST := 2.15.0

.versions/$(OLDEST)/ready: LIMITS := -c .github/oldest.txt
.versions/%/ready: pyproject.toml experiments/pyproject.toml kernels/pyproject.toml .github/oldest.txt
	$(PYTHON) -m venv .versions/$*
	.versions/$*/bin/python -m pip install --quiet $(LIMITS) torch==$* -e '.[dev]' -e ./experiments -e ./kernels
	touch $@

test-versions: .versions/$(OLDEST)/ready .versions/$(NEWEST)/ready  ## tests with the oldest and the newest PyTorch
	for version in $(OLDEST) $(NEWEST); do \
		OMP_NUM_THREADS=1 .versions/$$version/bin/python -m pytest -q -n 2 -W default \
			tests/contract/test_compile.py tests/compiled/test_inductor.py \
			src/catlog/testing/test_battery.py tests/package/test_import.py \
			-k "not every_setting and not learns_as_eager" || exit 1; \
		OMP_NUM_THREADS=1 .versions/$$version/bin/python -m pytest -q -n 2 -W default -k compil \
			tests/distributions tests/functions tests/estimators tests/contract --ignore=tests/contract/test_compile.py \
			tests/language_models/test_advantages.py tests/diagnostics/test_advise.py || exit 1; \
	done

battery: .venv/ready  ## test your estimator: make battery ESTIMATOR=FILE.py:CLASS
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --pyargs catlog.testing --catlog-estimator $(ESTIMATOR)

coverage: .venv/ready  ## run the tests with coverage: a table, and htmlcov/index.html
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 $(ELSEWHERE) --cov=catlog --cov=catlog_experiments --cov-report=term --cov-report=html

.venv/docs: .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

# Pages with a local MathJax need no network; without npm they load it from a CDN.
docs/_build/npm/node_modules/mathjax:
	-npm install --silent --no-audit --no-fund --prefix docs/_build/npm mathjax@3

docs: .venv/docs docs/_build/npm/node_modules/mathjax  ## check the pages against results/ and build the site, docs/_build/html/index.html; warnings are errors
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q docs/checks
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -E -W --keep-going docs docs/_build/html

bench: .venv/ready  ## measure time, memory and variance, written to results/ (20 minutes on two cores)
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.control_variates

suite: .venv/ready  ## every estimator on every problem (resumes where it was interrupted)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.suite

planted-bugs: .venv/pyro .venv-jax/ready  ## plant the bugs of tests/planted_bugs.toml one by one, and see whether the tests notice (half an hour)
	$(BIN)/python tests/planted_bugs.py

clean:  ## remove the environment and what was built
	rm -rf .venv .venv-jax .versions build dist demo runs docs/_build docs/api docs/gallery htmlcov \
		.coverage .pytest_cache .mypy_cache .ruff_cache
