# Every target makes what it needs, starting from a bare Python 3.11 or newer. `make help` lists them.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
TEST_WORKERS ?= 2

.PHONY: help venv demo test test-fast bench calibrations lint format types layers readme docs dist check clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

# A candidate counts when it runs (a pyenv shim may not), is new enough and can make virtual environments.
$(VENV)/.python: Makefile
	@found=""; \
	for candidate in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found="$$candidate"; break; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "hdpsim needs Python 3.11 or newer with the venv module, and found none: tried $(or $(PYTHON),python3.13 python3.12 python3.11 python3)." >&2; \
	  echo "Install one (Debian/Ubuntu: apt install python3.11-venv) or say where: make PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	if [ -x $(BIN)/python ] && $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  : "keep the environment that is there"; \
	else \
	  echo "Making $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@touch $@

$(VENV)/.installed: $(VENV)/.python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

venv: $(VENV)/.installed-dev ## make .venv with hdpsim and all development tools

demo: $(VENV)/.installed ## static mesh against HDP: Mistral-8x22B on 12,288 GPUs, results in runs/demo
	$(BIN)/hdpsim compare demo-8x22b-12k --out runs/demo

test: $(VENV)/.installed-dev ## all tests, slow ones included
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS)

test-fast: $(VENV)/.installed-dev ## the tests that take no longer than about two seconds each
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) -m "not slow"

bench: $(VENV)/.installed ## measure speed and memory (a few minutes); results in benchmarks/results.json
	$(BIN)/python benchmarks/run.py --plot

calibrations: $(VENV)/.installed ## make the shipped calibrations: make calibrations KERNELS="a.csv b.csv.gz" (ten minutes)
	$(BIN)/python tools/calibrations.py $(KERNELS)

lint: $(VENV)/.installed-dev ## ruff: rules and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/.installed-dev ## let ruff fix and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(VENV)/.installed-dev ## mypy --strict
	$(BIN)/mypy

layers: $(VENV)/.installed-dev ## who may import whom
	$(BIN)/lint-imports

readme: $(VENV)/.installed-dev ## run the commands of README.md and of every page that shows some
	$(BIN)/python tools/check_readme.py README.md $$(grep -lr '^```console' docs)

$(VENV)/.installed-docs: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(VENV)/.installed-docs ## the documentation as a site in site/; a broken link is an error
	$(BIN)/mkdocs build --quiet

dist: $(VENV)/.installed-dev ## build sdist and wheel, install them in clean environments and try them there
	$(BIN)/python tools/check_dist.py

check: lint types layers test readme docs dist ## everything a change must pass

clean: ## remove caches and build products (keeps .venv and runs)
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .grimp_cache build dist site
