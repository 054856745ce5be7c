# Everything a newcomer needs: `make serve` and `make test` set themselves up.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

# TORCH=cpu installs a torch without CUDA's libraries, from PyTorch's own index of such builds or a mirror of it.
TORCH           ?= cuda
TORCH_CPU_INDEX ?= 
ifeq ($(filter cuda cpu,$(TORCH)),)
$(error TORCH is cuda or cpu, not $(TORCH))
endif

.PHONY: serve test test-all check resolve format proto bench clean

## Serve the demo model on ports 8000 (HTTP) and 8001 (gRPC). ARGS="MODEL --prefill 2 ..." for others.
serve: $(VENV)/.serve
	$(BIN)/baton serve $(ARGS)

## All tests that need no GPU, the live Ray cluster included.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not gpu and not multi_gpu" $(ARGS)

## Formatting, lint, types and layers.
check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

## Do the versions in constraints.txt install elsewhere? Asked of the package registry, for every Python.
resolve: $(VENV)/.dev
	$(BIN)/python -m tests.install.resolve

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

## Generate the Python code of proto/*.proto; the output is committed.
proto: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I src --python_out=src --grpc_python_out=src \
	  --mypy_out=readable_stubs,quiet:src --mypy_grpc_out=quiet:src src/baton/proto/*.proto

## The measurements of docs/performance.md.
bench: $(VENV)/.dev
	$(BIN)/python -m bench.run $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info[:2] < (3, 15), sys.version' \
	  || { echo "Baton needs Python 3.11, 3.12, 3.13 or 3.14: make PYTHON=python3.13 ..."; exit 1; }
	@echo "set-up: a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

ifeq ($(TORCH),cpu)
define INSTALL_TORCH
@echo "set-up: torch for CPUs (0.2 GB) from $(TORCH_CPU_INDEX), then 0.2 GB of other packages; 1.4 GB on disk"
$(PIP) install -c constraints.txt --no-deps --index-url $(TORCH_CPU_INDEX) torch
endef
else
define INSTALL_TORCH
@echo "set-up: packages; up to 2.8 GB to download and 5.3 GB on disk, most of it CUDA's libraries: 1 to 5 minutes"
@[ -e /dev/nvidia0 ] || command -v nvidia-smi >/dev/null || echo \
  "set-up: this machine shows no NVIDIA GPU. Without CUDA's libraries it is 0.4 GB: Ctrl-C, make clean, make serve TORCH=cpu"
endef
endif

$(VENV)/.serve: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL_TORCH)
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL_TORCH)
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.serve
