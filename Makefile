# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.brim-installed
WORKERS ?= auto

.PHONY: help setup demo test check lint types layers unit soak bench clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(STAMP)  ## make .venv and install Brim with what its tests need

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[engine,dev]'
	touch $@

demo: setup  ## plan a few models on a few GPUs
	$(BIN)/python -m brim.cli.demo

test: check  ## everything: checks and tests

check: lint types layers unit

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

unit: setup
	$(BIN)/python -m pytest -q -n $(WORKERS) -m 'not soak and not gpu'

soak: setup  ## the long runs
	$(BIN)/python -m pytest -q -n $(WORKERS) -m soak

bench: setup  ## every number of the README
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:  ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
