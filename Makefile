# Everything a newcomer needs: `make serve` and `make test` set themselves up.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: serve test test-all check format proto bench clean

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
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing Baton into $(VENV) (once)"
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing Baton and its development tools into $(VENV) (once)"
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.serve
