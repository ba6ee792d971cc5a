# Fyke. `make crawl` and `make test` need nothing but this folder: they set everything up inside it.
.POSIX:
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev crawl test check quick lint simulate faults conformance bench docs fmt lock clean

SEED =
N = 500
JOBS = 1
SHORT =
LINE =
ARGS =
PY = .venv/bin/python
PYTEST = $(PY) -m pytest

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' Makefile | expand -t 20

setup: ## make .venv with all that a crawl needs
	@.ci/setup.sh run

setup-dev:
	@.ci/setup.sh dev

crawl: setup ## crawl SEED=https://…, or without it a small site served on loopback; ARGS are for `fyke crawl`
	@set -f; seeds='$(SEED)'; .venv/bin/fyke crawl $${seeds:---demo} $(ARGS)

test: setup-dev ## every test; what is missing on this machine is skipped by name
	@$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not bench" $(ARGS)

check: setup-dev ## format, lint, types, import contracts, quick tests: before every commit
	@$(MAKE) --no-print-directory --jobs=2 lint quick

quick: setup-dev
	@$(PYTEST) -q -m "not broker and not site and not bench and not slow" tests/unit tests/conformance

lint: setup-dev
	@.venv/bin/ruff format --check --quiet . || { .venv/bin/ruff format --check .; exit 1; }
	@.venv/bin/ruff check --quiet .
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/lint-imports --no-logo >.venv/lint-imports.txt 2>&1 || { cat .venv/lint-imports.txt; exit 1; }

simulate: setup-dev ## N=500 schedules of crashes and delays from number SEED=0 on, in JOBS=1 processes
	@seed='$(SEED)'; $(PY) -m tests.simulation.run -n $(N) --seed "$${seed:-0}" --jobs $(JOBS) $(ARGS)

faults: setup-dev ## the fault table on three brokers; SHORT=1 as in `make test`, LINE=name, SEED=n, ARGS=--fresh
	@$(PY) -m tests.faults.run $(SHORT:1=--short) $(LINE:%=--line %) --seed '$(SEED)' $(ARGS)

conformance: setup-dev ## the suites of others: URLs, robots.txt, encodings, …
	@$(PYTEST) tests/conformance $(ARGS)

bench: setup-dev ## pages per CPU-second beside Scrapy on a real site (minutes)
	@$(PY) -m tests.bench.peers $(ARGS)

docs: setup-dev ## write the generated pages of docs/ again
	@$(PY) -m tests.docs

fmt: setup-dev ## format and mend what can be mended
	@.venv/bin/ruff check --fix --quiet .
	@.venv/bin/ruff format --quiet .

lock: setup-dev ## resolve the dependencies again and write the lock files
	@.ci/lock.sh

clean: ## remove .venv and all that tools left behind
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
