# Each target works alone on a new clone with Python 3.11 (or 3.12), g++ and git.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

BIN := .venv/bin

# The model is local, and nobody is told that it ran.
export HF_HUB_OFFLINE ?= 1
export VLLM_NO_USAGE_STATS ?= 1
export DO_NOT_TRACK ?= 1
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help set-up demo demo-spyre serve test test-ttnn test-releases unit lint bench clean

help:
	@echo "make demo    serve SmolLM2-135M on an emulated Tenstorrent Galaxy and send it twelve chats"
	@echo "make demo-spyre  the same model on an emulated Spyre card"
	@echo "make serve   the same server, left running"
	@echo "make test    lint, then the tests: unit, integration, e2e"
	@echo "make test-ttnn  our use of ttnn against its real wheel, on Python 3.12 or 3.10"
	@echo "make test-releases  the mesh's engine on vLLM 0.26 to 0.32 (RELEASES=\"0.31.0\": those alone)"
	@echo "make unit    the unit tests alone"
	@echo "make lint    ruff and mypy"
	@echo "make bench   host time a step: mesh, beside vLLM's own scheduler; Spyre, with its copies and padding"
	@echo "make clean   remove .venv and what the targets made"

# Not every python3.11 on a path works (a version manager's stub, a Debian Python without venv): ask each.
set-up:
	@for python in "$${PYTHON:-}" python3.11 python3.12 python3; do \
	    if [ -n "$$python" ] && "$$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then \
	        exec "$$python" scripts/set_up.py; \
	    fi; \
	done; \
	echo "No Python 3.11 or 3.12 with venv was found; install one (Debian: python3.11-venv) or name it: make PYTHON=/path/to/python3.11 ..." >&2; \
	exit 1

demo: set-up
	@$(BIN)/stepshape demo

demo-spyre: set-up
	@$(BIN)/stepshape demo --device spyre

serve: set-up
	@exec $(BIN)/stepshape demo --serve-only

test: lint
	@$(BIN)/python scripts/test_ttnn.py
	@$(BIN)/python -m pytest -n 2 --dist loadfile

# Any Python can look for the one that the wheel is made for.
test-ttnn:
	@exec $$(command -v python3 || command -v python) scripts/test_ttnn.py

test-releases: set-up
	@$(BIN)/python scripts/test_releases.py $(RELEASES)

unit: set-up
	@$(BIN)/python -m pytest tests/unit

lint: set-up
	@echo "ruff"; $(BIN)/ruff check .
	@echo "mypy"; $(BIN)/mypy

bench: set-up
	@$(BIN)/python benchmarks/host_step.py
	@$(BIN)/python benchmarks/spyre_step.py

clean:
	rm -rf .venv .venv-ttnn set-up.log test-ttnn.log models runs build src/*.egg-info *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
