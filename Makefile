# Everything starts from here; only Python 3.11+ and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTABLE := $(VENV)/.testable
EXTRAS := dev,detect,segment,transformers,export,app,shards

.PHONY: demo test check papers all clean

all: check test papers

# What a user installs.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $(READY)

# What the tests need besides: every extra, so that no part goes untested.
$(TESTABLE): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	touch $(TESTABLE)

demo: $(READY)
	$(BIN)/glocal compare

test: $(TESTABLE)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

check: $(TESTABLE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell

papers: $(READY)
	$(BIN)/glocal papers

clean:
	rm -rf $(VENV)
