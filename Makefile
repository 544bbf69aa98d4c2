# What a contributor runs. Every target does its own set-up, from the versions locked in
# requirements/; a second run finds it done.
#
#   make test PYTHON=python3.13 VENV=.venv-3.13    with another Python, in another environment
#   make demo ARGS=--help                          what ARGS holds is passed on

VENV := .venv
PY := $(VENV)/bin/python
ARGS :=
export PYTHON

# Covered whole, line and branch: what decides. Covered but for a line in a thousand: what waits for others,
# where a line that runs only as two things meet is run by most runs and missed by some.
WHOLLY := src/comporta/limits/*,src/comporta/stores/*,src/comporta/retry/*,src/comporta/headers.py,src/comporta/steps.py,src/comporta/timeouts.py
COVERED := src/comporta/breaker/*,src/comporta/cache/*,src/comporta/database/*,src/comporta/pipeline/*,src/comporta/service/*,src/comporta/settings/*,src/comporta/upstream/*,src/comporta/watching/*,src/comporta/threads.py

# Stamps: the locked packages are in, the project itself is in, the peers to measure against are in. For
# the demo less will do, where nothing else was made yet.
LOCKED := $(VENV)/.locked
READY := $(VENV)/.ready
PEERS := $(VENV)/.peers
SOME := $(VENV)/.some

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt pages bench pictures soak lock clean
.DELETE_ON_ERROR:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(if $(wildcard $(READY)),$(READY),$(SOME)) ## See it all move: workers, failing portals, and a page to watch them on
	@$(PY) -m comporta.cli demo $(ARGS)

test: check ## Lint, types, then every test, on real servers, with coverage
	@$(PY) -m coverage erase
	@$(PY) -m $(if $(ARGS),coverage run -m pytest $(ARGS),tests.halves)
	@$(PY) -m coverage report --include='$(WHOLLY)' --fail-under=100
	@$(PY) -m coverage report --include='$(COVERED)' --precision=2 --fail-under=99.9

check: $(READY) ## Lint, format and types only
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --quiet --check .
	@$(PY) -m bandit --quiet --recursive --configfile pyproject.toml src
	@$(PY) -m mypy

fmt: $(READY) ## Format the code and sort its imports
	@$(PY) -m ruff check --quiet --fix --select I .
	@$(PY) -m ruff format .

pages: $(READY) ## Write what --help says into docs/command-line.md
	@$(PY) -m tests.cli.pages

bench: $(READY) $(PEERS) ## Measure against other libraries, side by side
	@$(PY) -m benchmarks $(ARGS)

pictures: $(READY) ## Draw the pictures of the guides anew, by playing the policies
	@$(PY) -m benchmarks.pictures $(ARGS)

soak: $(READY) ## The long tests: minutes of load, hundreds of repetitions
	@COMPORTA_SOAK=1 $(PY) -m pytest tests/soak $(ARGS)

# The versions already locked stay, unless UPGRADE=1. Needs uv: it resolves for all platforms at once.
LOCK = uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	$(if $(UPGRADE),--upgrade)

lock: ## Write requirements/ anew from pyproject.toml (UPGRADE=1: newest versions)
	@command -v uv >/dev/null || { echo 'comporta: make lock needs uv on PATH.' >&2; exit 1; }
	@$(LOCK) --group dev --output-file requirements/dev.txt
	@$(LOCK) --group dev --group bench --constraint requirements/dev.txt \
		--output-file requirements/bench.txt
	@$(LOCK) --group demo --constraint requirements/dev.txt --output-file requirements/demo.txt

clean: ## Remove the environment and everything generated
	@rm -rf $(VENV) .coverage .coverage.* htmlcov dist .mypy_cache .pytest_cache .ruff_cache \
		.hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(LOCKED): requirements/dev.txt
	@echo 'Making $(VENV) from requirements/dev.txt: a minute or two, and only this once ...'
	@scripts/venv new $(VENV)
	@scripts/venv install $(VENV) --require-hashes -r requirements/dev.txt
	@touch $@

$(READY): $(LOCKED) pyproject.toml
	@scripts/venv install $(VENV) --no-deps --no-build-isolation --editable .
	@touch $@

$(SOME): requirements/demo.txt pyproject.toml
	@echo 'Making $(VENV) from requirements/demo.txt: about a minute, and only this once ...'
	@scripts/venv new $(VENV)
	@scripts/venv install $(VENV) --require-hashes -r requirements/demo.txt
	@scripts/venv install $(VENV) --no-deps --no-build-isolation --editable .
	@touch $@

$(PEERS): $(LOCKED) requirements/bench.txt
	@echo 'Adding the peers from requirements/bench.txt ...'
	@scripts/venv install $(VENV) --require-hashes -r requirements/bench.txt
	@touch $@
