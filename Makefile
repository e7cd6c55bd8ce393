PYTHON ?= python3
UV ?= uv
# One more than there are processors: tests wait more than they compute. With two more, some wait seconds for a processor.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
ARGS ?=
MINUTES ?= 10
HISTORIES ?= 10000

export PIP_DISABLE_PIP_VERSION_CHECK = 1

BIN := .venv/bin
PIP := $(BIN)/python -m pip -qq
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 8 --dist worksteal
COMPILE := $(UV) pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 --no-header --no-annotate

# Two installations into one .venv must not run at the same time.
.NOTPARALLEL:
.PHONY: help demo test check bench bench-quick soak mutants docs format pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/installed ## watch processes share a lock while one crashes and one stalls
	$(BIN)/lockstead demo $(ARGS)

test: .venv/installed .venv/test ## run all tests (ARGS="-k name" for some)
	$(PYTEST) $(ARGS)

check: .venv/installed .venv/test .venv/bench ## lint, formatting, types, the generated façade
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python tools/unasync.py --check

bench: .venv/installed .venv/bench ## benchmark against peers and floors, into bench/results/: 15 minutes (ARGS="--only pair")
	$(BIN)/python -m bench $(ARGS)

bench-quick: .venv/installed .venv/bench ## the same in two minutes, with fewer cases and rounds
	$(BIN)/python -m bench --quick $(ARGS)

soak: .venv/installed .venv/test ## torture every store for MINUTES=10, then simulate histories for a quarter of that
	$(BIN)/python -m tests.torture --minutes $(MINUTES) --plot torture.svg
	@end=$$(($$(date +%s) + 15 * $(MINUTES))); \
	while [ $$(date +%s) -lt $$end ]; do \
		export LOCKSTEAD_SEED=$$($(BIN)/python -c 'import secrets; print(secrets.randbelow(10**12))'); \
		export LOCKSTEAD_HISTORIES=$(HISTORIES); \
		echo "LOCKSTEAD_SEED=$$LOCKSTEAD_SEED LOCKSTEAD_HISTORIES=$(HISTORIES)"; \
		$(PYTEST) tests/simulation $(ARGS) || exit 1; \
	done

mutants: .venv/installed .venv/test ## test the tests: every fault has its effect, every deliberate bug is found; large models
	LOCKSTEAD_TORTURE=1 $(PYTEST) tests/servers tests/torture tests/kit
	LOCKSTEAD_LARGE_MODELS=1 $(PYTEST) -rP tests/model

docs: .venv/docs ## build the site into site/; a dead link or anchor fails it
	$(BIN)/zensical build --clean --strict
	$(BIN)/python -m tests.project.site_links site

format: .venv/installed .venv/test ## fix lint and formatting, and generate the blocking façade
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/python tools/unasync.py

pins: ## update requirements/ to the newest versions (needs uv)
	$(COMPILE) --extra dev pyproject.toml -o requirements/test.txt
	for extra in build bench docs; do \
		$(COMPILE) --extra $$extra --constraints requirements/test.txt pyproject.toml -o requirements/$$extra.txt || exit 1; \
	done

clean: ## remove everything that make creates
	rm -rf .venv site dist torture.svg bench/results .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -prune -exec rm -rf {} +

# Stamps are inside .venv, so that removing it removes them too.

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lockstead needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/installed: .venv/created requirements/build.txt pyproject.toml
	$(PIP) install --require-hashes -r requirements/build.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

.venv/%: requirements/%.txt .venv/created
	$(PIP) install --require-hashes -r $<
	@touch $@
