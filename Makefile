# make demo   train, export and benchmark a selective cell, from a fresh clone
# make test   every check and test, from a fresh clone

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/edgernn.stamp
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(shell find runtime/csrc -type f)

# a process a processor, which takes whole files
SPREAD := -n auto --dist loadfile

.PHONY: setup demo test quick docs format clean

setup: $(STAMP)

# the stamp is newer than all that an editable install compiles; Python files need no new install
$(STAMP): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[cpu,dev]'
	touch $@

# an interrupted demo goes on where it was
demo: setup
	$(BIN)/edgernn train --task adding --cell sarnn --out runs/demo $(if $(wildcard runs/demo/config.json),--resume)
	$(BIN)/edgernn export runs/demo
	$(BIN)/edgernn bench runs/demo/model.onnx --device cpu

test: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m pytest $(SPREAD)

# what a developer repeats: no packaging, no training to the end, no kill -9
quick: setup
	$(BIN)/python -m pytest $(SPREAD) -m 'not slow'

# what the documents take from the code
docs: setup
	$(BIN)/python docs/generate.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
