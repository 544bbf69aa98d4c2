# Every target sets up what it needs from the versions locked in requirements/. A second run skips the set-up.
#
#   make test PYTHON=python3.13 VENV=.venv-3.13    use another Python, in another environment
#   make test JOBS=2 ARGS='tests/limits -x'        two test processes, some tests
#   make demo ARGS=--help                          ARGS is passed to the command

VENV := .venv
PY := $(VENV)/bin/python
ARGS :=
JOBS := 4
SEEDS := 2000
export PYTHON
# Hundreds of processes start in a test run; without compiled modules each of them would compile its own.
unexport PYTHONDONTWRITEBYTECODE

# Code that decides needs complete line and branch coverage. Code that waits for others needs 99.9 %: some of its
# lines run only when two events coincide, which most runs hit and some miss.
FULL_COVERAGE := src/comporta/limits/*,src/comporta/stores/*,src/comporta/retry/*,src/comporta/headers.py,src/comporta/ramp.py,src/comporta/timeouts.py,src/comporta/validators.py
HIGH_COVERAGE := src/comporta/breaker/*,src/comporta/cache/*,src/comporta/database/*,src/comporta/pipeline/*,src/comporta/service/*,src/comporta/settings/*,src/comporta/upstream/*,src/comporta/fleet/*,src/comporta/thread_pool.py,src/comporta/threads.py

# Stamp files: the locked packages are installed, the project itself is installed, the packages for one target
# are installed, only what the demo or `make threads` needs is installed.
LOCKED := $(VENV)/.locked
READY := $(VENV)/.ready
PEERS := $(VENV)/.peers
SITE := $(VENV)/.docs
PACKAGING := $(VENV)/.dist
MUTATION := $(VENV)/.mutants
DEMO_READY := $(VENV)/.demo-ready
THREADS_READY := $(VENV)/.threads-ready

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt pages bench docs dist mutants threads pictures soak sim lock clean
.DELETE_ON_ERROR:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(if $(wildcard $(READY)),$(READY),$(DEMO_READY)) ## Start workers, failing upstreams and a dashboard
	@$(PY) -m comporta.cli demo $(ARGS)

test: check $(SITE) ## Run lint, types and all tests on real servers, with coverage
	@$(PY) -m pytest --numprocesses $(JOBS) --cov --cov-report= $(ARGS)
	@$(PY) -m coverage report --include='$(FULL_COVERAGE)' --fail-under=100
	@$(PY) -m coverage report --include='$(HIGH_COVERAGE)' --precision=2 --fail-under=99.9

check: $(READY) ## Run lint, format check and type check
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --quiet --check .
	@$(PY) -m bandit --quiet --recursive --configfile pyproject.toml src
	@$(PY) -m mypy

fmt: $(READY) ## Format the code and sort its imports
	@$(PY) -m ruff check --quiet --fix --select I .
	@$(PY) -m ruff format .

pages: $(READY) ## Write every --help into docs/reference/command-line.md
	@$(PY) -m tests.cli.pages

bench: $(READY) $(PEERS) ## Measure comporta and other libraries side by side
	@$(PY) -m benchmarks $(ARGS)

docs: $(READY) $(SITE) ## Build the documentation site into build/site
	@$(PY) -m website build/site $(ARGS)

dist: $(READY) $(PACKAGING) ## Build sdist, wheel and bill of materials, and try them in empty environments
	@$(PY) -m release dist $(ARGS)

mutants: $(READY) $(MUTATION) ## Try the tests on mutants of the modules that decide (an hour; can be resumed)
	@$(PY) -m pytest --quiet -p no:cacheprovider mutation
	@$(PY) -m mutation $(ARGS)

threads: $(if $(wildcard $(READY)),$(READY),$(THREADS_READY)) ## Hammer the core from threads, also without the GIL
	@PYTHONPATH=src $(PY) -m release.threads

pictures: $(READY) ## Redraw the pictures of the guides
	@$(PY) -m benchmarks.pictures $(ARGS)

soak: $(READY) ## Run the long tests: minutes of load, hundreds of repetitions
	@COMPORTA_SOAK=1 $(PY) -m pytest tests/soak tests/stateful tests/histories --timeout 3600 $(ARGS)

sim: $(READY) ## Simulate SEEDS fleets with faults on virtual time (default 2000)
	@$(PY) -m comporta.simulation --seeds $(SEEDS) --jobs $(JOBS) $(ARGS)

# Keeps the locked versions unless UPGRADE=1. Needs uv, which resolves for all platforms at once.
LOCK = uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	$(if $(UPGRADE),--upgrade)

lock: ## Update requirements/ from pyproject.toml (UPGRADE=1: newest versions)
	@command -v uv >/dev/null || { echo 'comporta: make lock needs uv on PATH.' >&2; exit 1; }
	@$(LOCK) --group dev --output-file requirements/dev.txt
	@$(LOCK) --group dev --group bench --constraint requirements/dev.txt \
		--output-file requirements/bench.txt
	@for group in demo docs mutants threads; do \
		$(LOCK) --group $$group --constraint requirements/dev.txt \
			--output-file requirements/$$group.txt || exit 1; \
	done
	@$(LOCK) --group dist --constraint requirements/dev.txt --constraint requirements/docs.txt \
		--output-file requirements/dist.txt

clean: ## Remove the environment and everything generated
	@rm -rf $(VENV) .coverage .coverage.* htmlcov build dist .mypy_cache .pytest_cache .ruff_cache \
		.hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(LOCKED): requirements/dev.txt
	@echo 'Creating $(VENV) from requirements/dev.txt, once; this takes a minute or two ...'
	@scripts/venv new $(VENV)
	@scripts/venv install $(VENV) --no-deps --require-hashes -r requirements/dev.txt
	@touch $@

$(READY): $(LOCKED) pyproject.toml
	@scripts/venv install $(VENV) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEMO_READY): requirements/demo.txt pyproject.toml
	@echo 'Creating $(VENV) from requirements/demo.txt, once; this takes about a minute ...'
	@scripts/venv new $(VENV)
	@scripts/venv install $(VENV) --no-deps --require-hashes -r requirements/demo.txt
	@scripts/venv install $(VENV) --no-deps --no-build-isolation --editable .
	@touch $@

$(THREADS_READY): requirements/threads.txt
	@echo 'Creating $(VENV) from requirements/threads.txt, once ...'
	@scripts/venv new $(VENV)
	@scripts/venv install $(VENV) --no-deps --require-hashes -r requirements/threads.txt
	@touch $@

$(PEERS): requirements/bench.txt
$(SITE): requirements/docs.txt
$(PACKAGING): requirements/dist.txt
$(MUTATION): requirements/mutants.txt
$(PEERS) $(SITE) $(PACKAGING) $(MUTATION): $(LOCKED)
	@echo 'Installing $(filter requirements/%,$^) ...'
	@scripts/venv install $(VENV) --no-deps --require-hashes -r $(filter requirements/%,$^)
	@touch $@
