# make demo   train, export and benchmark a selective cell, from a fresh clone
# make test   every check and test, from a fresh clone
# make fuzz   packed models that may be anything, for FUZZ_SECONDS=600
# make example-cpp, example-c, example-node, example-browser   an app that streams a trained model: docs/apps.md

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/edgernn.stamp
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(shell find runtime/csrc -type f)

# a process a processor, which takes whole files
SPREAD := -n auto --dist loadfile

# what the examples stream: a file of steps, ten times over, as programs are slower while they start
EXAMPLE := models/adding-sarnn/model.onnx
STEPS := for i in 0 1 2 3 4 5 6 7 8 9; do tail -n +2 examples/adding.csv; echo; done

# what `make fuzz` takes
FUZZ_SECONDS := 600

.PHONY: setup demo test quick fuzz docs format clean example-cpp example-c example-node example-browser

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

# with ONNX Runtime's library out of its Python wheel, and ours
example-cpp: setup
	cmake -S examples/cpp -B build/example-cpp \
	    -DONNXRUNTIME_LIBRARY="$$(ls -d $(CURDIR)/$(VENV)/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.*)"
	cmake --build build/example-cpp
	library="$$($(BIN)/python -c 'from edgernn.runtime import library_path; print(library_path())')" && \
	    ($(STEPS)) | build/example-cpp/stream $(EXAMPLE) "$$library" > build/y.csv

# without ONNX Runtime, on our library alone
example-c: setup
	mkdir -p build
	$(BIN)/edgernn pack $(EXAMPLE) --out build/model.edgernn
	cmake -S examples/c -B build/example-c \
	    -DEDGERNN_LIBRARY="$$($(BIN)/python -c 'from edgernn.runtime import library_path; print(library_path())')"
	cmake --build build/example-c
	($(STEPS)) | build/example-c/stream build/model.edgernn > build/y.csv

example-node: examples/node/node_modules
	mkdir -p build
	($(STEPS)) | node examples/node/stream.mjs $(EXAMPLE) > build/y.csv

example-browser: examples/browser/node_modules
	node examples/browser/serve.mjs $(EXAMPLE)

examples/%/node_modules: examples/%/package-lock.json
	npm ci --prefix examples/$*
	touch $@

test: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m pytest $(SPREAD)

# what a developer repeats: no packaging, no training to the end, no kill -9
quick: setup
	$(BIN)/python -m pytest $(SPREAD) -m 'not slow'

# what it finds interesting is kept, so that the next one goes on from there; a file that does harm is named
fuzz:
	cmake -S . -B build/fuzz -DEDGERNN_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG'
	cmake --build build/fuzz --parallel 2 --target edgernn_fuzz
	mkdir -p build/fuzz/found
	build/fuzz/edgernn_fuzz -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
	    -print_final_stats=1 -artifact_prefix=build/fuzz/ build/fuzz/found tests/corpus/packed tests/corpus/found

# what the documents take from the code
docs: setup
	$(BIN)/python docs/generate.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
