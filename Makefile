# Every target that runs something first makes sure of the environment in .venv; that takes no time when it is whole.
# Options: GPU=1|0 (CUDA or CPU libraries), PYTHON=python3.12, ARGS="..." (more arguments for test, bench and torture),
# JOBS=2 (test files at a time).

SHELL := /bin/sh
PYTHON_IN_VENV := .venv/bin/python
ARGS ?=
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install demo ui staleness quality bench torture doctor test check pins clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

install: ## the Python environment in .venv
	@sh platform/install.sh

demo: install ## trains real days one after the other on this machine; a few minutes
	@$(PYTHON_IN_VENV) jobs/demo.py

ui: install ## opens what demo recorded in MLflow
	@$(PYTHON_IN_VENV) -P -m diurnal.tracking.ui --config jobs/configs/movielens.toml --config jobs/configs/demo.toml

staleness: install ## a model updated every day, against older versions of it, on real data; about six minutes
	@$(PYTHON_IN_VENV) jobs/staleness.py

quality: install ## compares the model's quality with other models on real data
	@$(PYTHON_IN_VENV) jobs/quality.py

bench: install ## measures speed on this machine
	@$(PYTHON_IN_VENV) tests/bench/run.py $(ARGS)

torture: install ## trains through a hundred random deaths and faults, and compares; about 20 minutes
	@$(PYTHON_IN_VENV) tests/torture/run.py $(ARGS)

doctor: install ## are the libraries, a lookup and a collective in order here?
	@.venv/bin/diurnal doctor

test: install ## all tests, two files at a time; one folder or file with ARGS=tests/unit/config, one at a time with JOBS=0
	.venv/bin/pytest -n $(JOBS) $(ARGS)

check: install ## style, types, and which room imports which
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/basedpyright
	.venv/bin/lint-imports

pins: ## resolves the newest versions that pyproject.toml allows and writes constraints.txt (Python 3.11, CPU libraries)
	@rm -rf build/pins
	@GPU=0 VENV=build/pins CONSTRAINTS=/dev/null sh platform/install.sh
	@sed -n '/^#/p' constraints.txt >build/pins.txt
	@build/pins/bin/pip freeze --all --exclude pip --exclude-editable | sed 's/+.*//' | grep -Ev '^(nvidia|cuda|triton)' >>build/pins.txt
	@mv build/pins.txt constraints.txt && rm -rf build/pins

clean: ## removes what can be made again; what was trained (build/storage) stays
	rm -rf .venv dist build/pins build/install.* .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
