# `make` or `make help` explains the targets; PYTHON chooses the interpreter: make test PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup train test test-xla lint bench

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## .venv beside the Makefile, everything pinned by constraints.txt

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; (3, 11) <= v < (3, 14) or sys.exit(f"Python 3.11, 3.12 or 3.13 is needed, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12")'
	@echo "setting up $(VENV), some minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --constraint constraints.txt --editable '.[test]'
	@touch $@

train: $(READY)  ## set up, then train residual=laurel_rw+lr on the standard library's source
	@$(BIN)/residual-lab train residual=laurel_rw+lr

test: $(READY)  ## set up, then the tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses auto

XLA := .venv-xla

test-xla: $(XLA)/.ready  ## every connection once through Lightning's TPU path on a CPU (several GB)
	@$(XLA)/bin/python -m tests.xla.train_each

$(XLA)/.ready: pyproject.toml constraints.txt
	@test -x $(XLA)/bin/python || $(PYTHON) -m venv $(XLA)
	@grep -v '^torch==' constraints.txt > $(XLA)/constraints.txt
	@$(XLA)/bin/python -m pip --quiet --disable-pip-version-check install \
	    --constraint $(XLA)/constraints.txt torch==2.9.1 torch_xla==2.9.0 --editable .
	@touch $@

lint: $(READY)  ## ruff's checks and format, and mypy's types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(READY)  ## set up, then the benchmarks of step time (benchmarks/)
	@$(BIN)/python -m benchmarks
