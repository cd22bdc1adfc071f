# make demo and make test set everything up themselves; make setup alone prepares .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LOCK   := docker/requirements.lock
READY  := $(VENV)/.ready

export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1

.PHONY: help setup demo test lint format types unit server worker clean check-docker check-mmpose check-vllm

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY)  ## make .venv and install the locked versions

$(READY): $(LOCK) docker/install.sh
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
	  { echo "Python 3.11 or 3.12 is needed: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@sh docker/install.sh $(BIN)/python $(LOCK)
	@touch $@

demo: $(READY)  ## build the demo dataset into out/pab
	@$(BIN)/python -m pipeline.build --profile demo

server: $(READY)  ## run the Prefect server on loopback
	@$(BIN)/python -m flows.serve server

worker: $(READY)  ## register the deployments (build-pab, train-eval), and run them when asked
	@$(BIN)/python -m flows.serve worker

test: lint types unit  ## lint, types and all tests

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@$(BIN)/mypy

unit: $(READY)
	@$(BIN)/python -m pytest -n 2 --dist loadfile

format: $(READY)  ## put the code in its form
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

check-docker: $(READY)  ## what of the container images can be tried without a container engine
	@sh docker/check-docker.sh

check-mmpose: $(READY)  ## poses by the real mmpose, in .venv-mmpose
	@sh docker/check-mmpose.sh

check-vllm: $(READY)  ## answers by the real vLLM on the CPU, in .venv-vllm
	@sh docker/check-vllm.sh

clean:  ## remove what builds made (not .venv, not out)
	rm -rf work .pytest_cache .mypy_cache .ruff_cache .hypothesis
