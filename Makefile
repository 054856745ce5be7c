# Everything a newcomer needs: `make serve` and `make test` set themselves up.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Bytecode is kept, whatever the shell says: three workers and hundreds of processes would compile all of it anew.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
PIP    := $(BIN)/python -m pip --disable-pip-version-check

# Which build of torch: the registry's own, with CUDA's libraries, or one that uv knows from PyTorch's own indexes (cpu ...).
TORCH ?= cuda

# One more than there are cores: tests wait for clocks and sockets now and then.
WORKERS ?= $(shell expr $$(nproc) + 1)
VARIANTS ?= portable
ELSEWHERE := gpu or multi_gpu or clients

# Tests that may run beside each other, then those of the live Ray cluster, which have the machine to themselves. Of the
# tests that ARGS names none may be of one kind (pytest then ends with 5), but some must be of one of them.
APART := $(PYTEST) -n $(WORKERS) --dist worksteal
TESTS = run $(APART) -m "not ($(ELSEWHERE) or cluster or wide)" $(ARGS); \
  run $(PYTEST) -m "cluster and not wide" $(or $(ARGS),tests/cluster);
WIDE_TESTS = run $(APART) -m "wide and not ($(ELSEWHERE) or cluster)" $(ARGS); \
  run $(PYTEST) -m "cluster and wide" $(or $(ARGS),tests/cluster);
BEGIN := num_run=0; run() { \
  "$$@" && num_run=$$((num_run + 1)) || { status=$$?; [ $$status -eq 5 ] $(if $(ARGS),,&& false) || exit $$status; }; };
END := [ $$num_run -gt 0 ] || { echo "no test ran: ARGS names none that are run here"; exit 5; }

.PHONY: serve wheel test test-wide test-all test-clients tools check resolve format proto chart bench clean

## Serve the demo model on ports 8000 (HTTP) and 8001 (gRPC). ARGS="MODEL --prefill 2 ..." for others.
serve: $(VENV)/.serve $(VENV)/.kernels
	@$(BIN)/python -m compileall -q src/baton/*/  # or each process does, each time, where PYTHONDONTWRITEBYTECODE is set
	$(BIN)/baton serve $(ARGS)

## What a change must pass: minutes. The live Ray cluster comes last, and has the machine to itself.
## ARGS="-k draft" or ARGS=tests/engine for some of it.
test: $(VENV)/.dev $(VENV)/.kernels
	$(BEGIN) $(TESTS) $(END)

## The rest: wide products, long schedules of chaos, several nodes, compilation for GPUs.
test-wide: $(VENV)/.dev $(VENV)/.kernels
	$(BEGIN) $(WIDE_TESTS) $(END)

test-all: $(VENV)/.dev $(VENV)/.kernels
	$(BEGIN) $(TESTS) $(WIDE_TESTS) $(END)

## Other people's clients, as they are: each is installed once, below ~/.cache/baton (2 GB), and asks a gateway. ARGS="-k litellm".
## Prints the table of docs/clients.md. Needs pip's registry, npm's, and Node.
test-clients: $(VENV)/.dev
	$(PYTEST) -m clients tests/clients $(ARGS)

## Programs that some wide tests run: Prometheus, promtool, Chromium (Debian's), checkov. Once, below ~/.cache/baton (0.8 GB).
tools: $(VENV)/.dev
	@$(BIN)/python -m tests.install.tools

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

## Generate the Python code of proto/*.proto, and client/sampling_options.py; the output is committed.
proto: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I src --python_out=src --grpc_python_out=src \
	  --mypy_out=readable_stubs,quiet:src --mypy_grpc_out=quiet:src src/baton/proto/*.proto
	$(BIN)/python -m tests.client.generate_options

## Generate the chart's values.yaml, its schema and README, and docs/configuration.md; committed as well.
chart: $(VENV)/.dev
	PYTHONPATH=src:. $(BIN)/python -m tests.helm.generate

## A wheel in dist/ that brings kernels for several kinds of CPU, tried where there is no compiler.
## VARIANTS="x86-64-v3 x86-64" for some; VARIANTS=armv8-a CXX=aarch64-linux-gnu-g++ for another machine.
wheel: $(VENV)/.serve
	$(BIN)/python -m tests.install.wheel $(VARIANTS)

## The measurements that docs/performance.md begins with: half an hour. The others have commands of their own, named beside them.
bench: $(VENV)/.dev
	$(BIN)/python -m bench $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info[:2] < (3, 15), sys.version' \
	  || { echo "Baton needs Python 3.11, 3.12, 3.13 or 3.14: make PYTHON=python3.13 ..."; exit 1; }
	@echo "set-up: a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

ifeq ($(TORCH),cuda)
define INSTALL_TORCH
@echo "set-up: packages; up to 2.9 GB to download and 5.6 GB on disk, most of it CUDA's libraries: 1 to 5 minutes"
@[ -e /dev/nvidia0 ] || command -v nvidia-smi >/dev/null || echo \
  "set-up: this machine shows no NVIDIA GPU. Without CUDA's libraries it is 0.4 GB: Ctrl-C, make clean, make serve TORCH=cpu"
endef
else
define INSTALL_TORCH
@echo "set-up: torch for $(TORCH) (0.2 GB for cpu), then 0.2 GB of other packages; 1.5 GB on disk"
$(PIP) install --quiet -c constraints.txt uv
@$(BIN)/uv pip install --python $(BIN)/python --torch-backend $(TORCH) -c constraints.txt torch || { echo \
  "set-up: torch for $(TORCH) comes from PyTorch's own index. If that is out of reach, leave TORCH=$(TORCH) out: pip's registry has the larger build"; \
  exit 1; }
endef
endif

$(VENV)/.serve: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL_TORCH)
	$(PIP) install -c constraints.txt -e .
	@touch $@

# Here rather than at the first start. Without a compiler nothing fails: the kernels are torch's then, and slower.
$(VENV)/.kernels: $(VENV)/.serve $(wildcard kernels/cpu/source/*/*) kernels/cpu/build.py
	@echo "set-up: compiling the kernels for this CPU: about a minute of CPU time, once"
	@$(BIN)/python -m baton.kernels.cpu --if-possible
	@$(BIN)/baton serve --check >/dev/null 2>&1 || true  # or the first start would judge the demo
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL_TORCH)
	$(PIP) install -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m compileall -q -j 0 src/baton/*/  # once, and not by each worker of the tests
	@touch $@ $(VENV)/.serve
