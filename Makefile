# make demo    train, export and benchmark a selective cell, from a fresh clone
# make test    check format and lint, and run all tests, from a fresh clone
# make quick   run a sample of the tests, for use during development
# make checks  run all of the following checks; a check that lacks a tool says which one
#   make check-format         check the format of C and C++
#   make check-types          check the types of the Python code with mypy in strict mode
#   make check-wheel          build a wheel and use it from another folder and without torch
#   make check-wheels         build the wheels and use them without a compiler, in qemu and wine too
#   make check-sdk            build programs in C and C++ with the kit, for each target
#   make check-instructions   count the instructions of three kernels with valgrind
#   make check-added-rule     add a rule (one file, one line in the list) and run all tests of rules for it
#   make check-sanitizers     run the kernel tests with the address and undefined behaviour sanitizers
#   make check-calls          call the native op with CALLS random inputs, under sanitizers
#   make check-fuzz           fuzz the reader of packed models with FUZZ_RUNS inputs, for at most FUZZ_SECONDS
#   make check-fuzz32         the same for a 32-bit library, with FUZZ32_RUNS inputs
#   make check-threads        run packed models on several threads, and in forked processes, with ThreadSanitizer
#   make check-faults         kill and disturb every command that writes files, for SECONDS; reproduce, sweep from 300 on
#   make check-readers        read READS damaged files of every other format
#   make check-supply-chain   check the licences of dependencies, their known vulnerabilities, and the wheel's SBOM
#   make check-programs       run PROGRAMS packed models with random programs as cells, valid and invalid
#   make check-models         open and run MODELS corrupted model files
#   make check-foreign        stream and calibrate real recurrent files of FOREIGN, a folder with their references
#   make check-gpu            compile the GPU kernels with nvcc and Triton; needs no GPU
#   make check-instruction-sets   run the kernel tests with each instruction set of this machine
#   make check-arm            run the kernels on 64-bit Arm in qemu
#   make check-apps           run the example apps, in a browser too
#   make check-wasm           run the npm package in Node, with damaged models too
#   make check-mcu            run the C files of models, here and on emulated microcontrollers; with FOREIGN, silero-vad too
#   make check-docs           build the documentation site with warnings as errors and check its links
# make docs    regenerate the generated parts of docs/ and of the C++ code, and build the site
# make wasm    build edgernn.wasm of the npm package in runtime/js
# make wheels  build wheels for Linux (x86-64 and 64-bit Arm) and Windows in dist
# make sdk     build the kit for C and C++ programs in build/sdk
# make macos   compile the libraries for macOS on Arm, which are not tested
# make docs-site   build the documentation site: build/site/index.html
# make example-cpp, example-c, example-node, example-browser, example-mcu   build and run an example app:
#     docs/how-to/stream.md
# make example-words, example-words-browser [MODEL=FILE.onnx]   detect spoken words: docs/how-to/detect-words.md
# make example-vad, example-vad-browser [MODEL=FILE.onnx NEW=SAMPLES]   find speech: docs/how-to/detect-speech.md

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/edgernn.stamp
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard cmake/*.cmake) $(shell find runtime/csrc -type f -not -name '*.pyc')

NATIVE := $(shell find runtime/csrc runtime/firmware examples/c examples/cpp examples/mcu tests -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.c')

# tests start hundreds of processes, each of which would compile the package anew
unexport PYTHONDONTWRITEBYTECODE

# one process per processor; each takes whole test files
SPREAD := -n auto --dist loadfile

# maximum number of cases per test in `make quick`
SAMPLE := 1

# input of the examples: a file of steps, repeated ten times for warm-up
EXAMPLE := models/adding-sarnn/model.onnx
STEPS := for i in 0 1 2 3 4 5 6 7 8 9; do tail -n +2 examples/adding.csv; echo; done

# fixed number of inputs and fixed seed, so that the check is reproducible;
# a longer search with a random seed: make check-fuzz FUZZ_RUNS=-1 FUZZ_SEED=0 FUZZ_SECONDS=3600
FUZZ_RUNS := 20000
FUZZ_SEED := 1
FUZZ_SECONDS := 600
PROGRAMS := 3000
MODELS := 1000
CALLS := 2000

# build the kernels of one instruction set only, which takes a third of the time
CHECKED_ISA := avx2
# every cell, every rule on some cells, every size class, and refused calls; check-calls draws from all pairs
SANITIZED_TESTS := tests/test_native_op.py::test_op_equals_oracle \
    tests/test_native_op.py::test_batch_equals_its_samples_one_by_one \
    tests/test_native_op.py::test_final_state_may_share_memory_with_initial_state \
    tests/test_native_rules.py tests/test_native_refusals.py tests/test_native_programs.py \
    tests/test_native_functions.py tests/test_program_refusals.py \
    tests/test_fused.py::test_program_of_each_cell_of_ours_gives_what_its_kernel_gives \
    tests/test_fused.py::test_random_equations_equal_the_loop tests/test_fused.py::test_groups_of_neurons_equal_the_loop \
    tests/test_fused_program_refusals.py \
    tests/test_native_weights.py::test_low_rank_equals_oracle \
    tests/test_native_weights.py::test_sparse_weights_equal_oracle

CHECKS := check-format check-types check-wheel check-wheels check-sdk check-instructions check-added-rule \
    check-sanitizers check-calls check-fuzz check-fuzz32 check-threads check-faults check-readers check-supply-chain \
    check-programs check-models check-foreign check-gpu check-instruction-sets check-arm check-apps check-wasm check-mcu check-docs

.PHONY: setup demo test quick checks $(CHECKS) fuzzers fuzz32-packages fuzz32-tools sanitized wasm wasm-tools wasm-packages mcu-packages docs docs-site wheel-tools wheels sdk macos format clean example-cpp example-c example-node example-browser example-mcu example-words example-words-browser example-vad example-vad-browser

setup: $(STAMP)

# the stamp is newer than all compiled sources; an editable install reads Python files in place
$(STAMP): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[cpu,train,dev]'
	touch $@

# resumes an interrupted demo
demo: setup
	$(BIN)/edgernn train --task adding --cell sarnn --out runs/demo $(if $(wildcard runs/demo/config.json),--resume)
	$(BIN)/edgernn export runs/demo
	$(BIN)/edgernn bench runs/demo/model.onnx --device cpu

# uses ONNX Runtime's library from its Python wheel, and the native library
example-cpp: setup
	cmake -S examples/cpp -B build/example-cpp \
	    -DONNXRUNTIME_LIBRARY="$$(ls -d $(CURDIR)/$(VENV)/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.*)"
	cmake --build build/example-cpp
	library="$$($(BIN)/python -c 'from edgernn.runtime import library_path; print(library_path())')" && \
	    ($(STEPS)) | build/example-cpp/stream $(EXAMPLE) "$$library" > build/y.csv

# uses the native library only, without ONNX Runtime
example-c: setup
	mkdir -p build
	$(BIN)/edgernn pack $(EXAMPLE) --out build/model.edgernn
	cmake -S examples/c -B build/example-c \
	    -DEDGERNN_LIBRARY="$$($(BIN)/python -c 'from edgernn.runtime import library_path; print(library_path())')"
	cmake --build build/example-c
	($(STEPS)) | build/example-c/stream build/model.edgernn > build/y.csv

# detects words in WAV, or in what the microphone hears: make example-words [MODEL=FILE.onnx] [WAV=FILE.wav]
MODEL := english-room-delta
WAV := -
ifneq ($(WAV),-)
RECORD :=
else
RECORD := arecord -q -f S16_LE -r 16000 |
endif

example-words: build/words.edgernn
	cmake -S examples/c -B build/example-c \
	    -DEDGERNN_LIBRARY="$$($(BIN)/python -c 'from edgernn.runtime import library_path; print(library_path())')"
	cmake --build build/example-c
	$(RECORD) build/example-c/words $< $(WAV)

example-words-browser: build/words.edgernn wasm examples/browser/node_modules
	@echo 'open the page /words.html, or /wakeword.html for a phrase, of this address:'
	node examples/browser/serve.mjs $<

# finds speech in WAV, or in what the microphone hears: make example-vad [MODEL=FILE.onnx NEW=SAMPLES] [WAV=FILE.wav]
# NEW: new samples of a step, for a model that reads more of them
example-vad: build/words.edgernn
	cmake -S examples/c -B build/example-c \
	    -DEDGERNN_LIBRARY="$$($(BIN)/python -c 'from edgernn.runtime import library_path; print(library_path())')"
	cmake --build build/example-c
	$(RECORD) build/example-c/vad $(if $(NEW),-n $(NEW)) $< $(WAV)

example-vad-browser: build/words.edgernn wasm examples/browser/node_modules
	@echo 'open the page /vad.html$(if $(NEW),?new=$(NEW)) of this address:'
	node examples/browser/serve.mjs $<

.PHONY: build/words.edgernn
build/words.edgernn: setup
	mkdir -p build
	$(BIN)/edgernn pack $(MODEL) --out $@

WASM_CXX := clang++-19
WASM_PACKAGES := clang-19 lld-19 wasi-libc libc++-19-dev-wasm32 libclang-rt-19-dev-wasm32

wasm-packages:
	@echo $(WASM_PACKAGES)

# compiles and links a program with a list, which needs every package
wasm-tools:
	@printf '#include <vector>\nint main(int n, char**) { return static_cast<int>(std::vector<int>(n).size()); }' | \
	    $(WASM_CXX) --target=wasm32-wasi -fno-exceptions -x c++ - -o /dev/null 2>/dev/null || \
	    { echo 'wasm: no compiler for WebAssembly; run: apt-get install $(WASM_PACKAGES)' >&2; exit 1; }

wasm: wasm-tools
	cmake --toolchain cmake/wasm32.cmake -S . -B build/wasm -DWASM_CXX=$(WASM_CXX)
	cmake --build build/wasm --parallel 2
	cmake --install build/wasm --prefix runtime/js

# with the package in runtime/js; `node examples/node/stream.mjs MODEL.onnx` uses ONNX Runtime, after `npm ci`
example-node: setup wasm
	mkdir -p build
	$(BIN)/edgernn pack $(EXAMPLE) --out build/model.edgernn
	($(STEPS)) | node examples/node/stream.mjs build/model.edgernn > build/y.csv

# a user may choose an ONNX file on the page, which needs ONNX Runtime
example-browser: setup wasm examples/browser/node_modules
	mkdir -p build
	$(BIN)/edgernn pack $(EXAMPLE) --out build/model.edgernn
	node examples/browser/serve.mjs build/model.edgernn

WHEEL_TOOLS := auditwheel ninja wheel

wheel-tools: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(WHEEL_TOOLS)

# names the targets without a compiler, and leaves them out
wheels sdk: wheel-tools
	@$(BIN)/python cmake/build.py $@

# compiles the libraries for macOS, which are not tested
macos: wheel-tools
	$(BIN)/python -m pip install --quiet --constraint constraints.txt ziglang
	PATH="$$PATH:$(CURDIR)/$(BIN)" cmake -G Ninja --toolchain cmake/arm64-macos.cmake -S . -B build/arm64-macos
	PATH="$$PATH:$(CURDIR)/$(BIN)" cmake --build build/arm64-macos --parallel 2 --target edgernn_ops edgernn_train edgernn_shared

PROCESSORS := cortex-m4 cortex-m7 cortex-m55 riscv32

mcu-packages:
	@echo gcc-arm-none-eabi gcc-riscv64-unknown-elf qemu-system-arm qemu-system-misc

# on every processor, in qemu
example-mcu: setup
	$(BIN)/edgernn pack $(EXAMPLE) --target c --out build/model-c
	@for processor in $(PROCESSORS); do \
	    echo $$processor; \
	    cmake --log-level=ERROR -S examples/mcu -B build/example-mcu/$$processor \
	        --toolchain $(CURDIR)/examples/mcu/toolchain.cmake -DPROCESSOR=$$processor -DMODEL=$(CURDIR)/build/model-c && \
	    cmake --build build/example-mcu/$$processor -- --quiet run || exit 1; \
	done

examples/%/node_modules: examples/%/package-lock.json
	npm ci --prefix examples/$*
	touch $@

test: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pydoclint edgernn export runtime training docs
	$(BIN)/python -m pytest $(SPREAD)

# no test that is slow, compiles or starts a process, and at most SAMPLE cases of each test, the same at every run
quick: setup
	$(BIN)/python -m pytest $(SPREAD) --sample $(SAMPLE)

# make -j2 checks runs two at a time; those that build in the same folder follow each other
checks: $(CHECKS)
ifneq ($(filter checks,$(MAKECMDGOALS)),)
check-wheels: check-wheel
check-sdk: check-wheels
endif
# programs that the checks start call make, too
unexport MAKEFLAGS

check-types: setup
	$(BIN)/python -m pytest tests/checks/types.py

check-wheel: wheel-tools
	$(BIN)/python -m pytest tests/checks/wheel.py

check-wheels: wheel-tools
	$(BIN)/python -m pytest -rs tests/checks/wheels.py

check-sdk: wheel-tools
	$(BIN)/python -m pytest -rs tests/checks/sdk.py

check-instructions: setup
	$(BIN)/python -m pytest tests/checks/instruction_counts.py

check-added-rule: setup
	$(BIN)/python -m pytest tests/checks/added_rule.py

# detect_leaks=0: Python and torch do not free all memory at exit
SANITIZED_ENVIRONMENT := EDGERNN_ISA=$(CHECKED_ISA) EDGERNN_LIBRARY=build/sanitized/libedgernn_ops.so \
    LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libstdc++.so.6)" \
    ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1

check-sanitizers: sanitized
	$(SANITIZED_ENVIRONMENT) \
	    $(BIN)/python -m pytest -x -m 'not slow' --capture=sys -p no:cacheprovider $(SANITIZED_TESTS)

check-calls: sanitized
	$(SANITIZED_ENVIRONMENT) $(BIN)/python -m tests.fuzz_op_calls $(CALLS) $(if $(OUT),--out $(OUT))

# -O0 compiles far faster
sanitized: setup
	cmake -S . -B build/sanitized -DEDGERNN_SANITIZE=ON -DEDGERNN_ISAS=$(CHECKED_ISA) \
	    -DCMAKE_CXX_FLAGS_RELEASE='-O0 -DNDEBUG'
	cmake --build build/sanitized --parallel 2 --target edgernn_ops edgernn_train

CONFIGURE_FUZZ := cmake -S . -B build/fuzz -DEDGERNN_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++ -DEDGERNN_ISAS=$(CHECKED_ISA) \
    -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG'

# does nothing without clang++, which the checks name
fuzzers:
	@command -v clang++ >/dev/null || exit 0; set -e; $(CONFIGURE_FUZZ); \
	cmake --build build/fuzz --parallel 2 --target edgernn_fuzz edgernn_fuzz_programs

# new inputs are kept in build/fuzz/found for the next run; a crashing input is saved in build/fuzz
check-fuzz: fuzzers
	@command -v clang++ >/dev/null || { echo 'check-fuzz: skipped, clang++ is not installed'; exit 0; }; set -e; \
	mkdir -p build/fuzz/found; \
	build/fuzz/edgernn_fuzz -seed=$(FUZZ_SEED) -runs=$(FUZZ_RUNS) -max_total_time=$(FUZZ_SECONDS) \
	    -max_len=4096 -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
	    -print_final_stats=1 -artifact_prefix=build/fuzz/ build/fuzz/found tests/corpus/packed tests/corpus/found \
	    2> build/fuzz/log || { cat build/fuzz/log; exit 1; }; \
	awk 'BEGIN {runs = 0} /number_of_executed_units/ {runs = $$2} END {print "libFuzzer: " runs " packed models"; \
	    exit runs < 2000}' build/fuzz/log || { cat build/fuzz/log; exit 1; }

M32 := -m32 -msse2 -mfpmath=sse -idirafter /usr/include/x86_64-linux-gnu

# every packed model of the corpus with a valid checksum
THREADED := $(filter-out %-1 %-2,$(wildcard tests/corpus/packed/*))

# -O1 keeps stack traces readable; a forked process goes on, though its parent has several threads
check-threads: setup
	cmake -S . -B build/threads -DEDGERNN_ISAS=$(CHECKED_ISA) -DCMAKE_CXX_FLAGS=-fsanitize=thread \
	    -DCMAKE_CXX_FLAGS_RELEASE='-O1 -g -DNDEBUG'
	cmake --build build/threads --parallel 2 --target edgernn_threads edgernn_ops
	TSAN_OPTIONS=die_after_fork=0:halt_on_error=1 build/threads/edgernn_threads $(THREADED)
	TSAN_OPTIONS=die_after_fork=0:halt_on_error=1:suppressions=tests/thread_suppressions.txt \
	    LD_PRELOAD="$$(c++ -print-file-name=libtsan.so) $$(c++ -print-file-name=libstdc++.so.6)" \
	    EDGERNN_ISA=$(CHECKED_ISA) EDGERNN_LIBRARY=build/threads/libedgernn_ops.so \
	    $(BIN)/python -m tests.use_op_threads

# not g++-multilib, which excludes the cross compiler for 64-bit Arm
FUZZ32_PACKAGES := clang g++-12-multilib libc6-dev-i386
FUZZ32_RUNS := 5000

fuzz32-packages:
	@echo $(FUZZ32_PACKAGES)

fuzz32-tools:
	@printf '#include <cerrno>\n#include <vector>\nint main() { return 0; }' | \
	    clang++ $(M32) -fsanitize=fuzzer-no-link,address -x c++ - -o /dev/null 2>/dev/null || \
	    { echo 'clang++ does not compile for 32 bits; run: apt-get install $(FUZZ32_PACKAGES)' >&2; exit 1; }

# baseline instructions; -O0 compiles far faster
check-fuzz32:
	@$(MAKE) --silent fuzz32-tools || { echo 'check-fuzz32: skipped'; exit 0; }; set -e; \
	$(subst -O1,-O0,$(subst build/fuzz,build/fuzz32,$(subst $(CHECKED_ISA),baseline,$(CONFIGURE_FUZZ)))) \
	    -DCMAKE_CXX_FLAGS='$(M32)'; \
	cmake --build build/fuzz32 --parallel 2 --target edgernn_fuzz; \
	mkdir -p build/fuzz32/found; \
	build/fuzz32/edgernn_fuzz -seed=$(FUZZ_SEED) -runs=$(FUZZ32_RUNS) -max_total_time=60 -max_len=4096 -timeout=10 \
	    -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 -artifact_prefix=build/fuzz32/ build/fuzz32/found \
	    tests/corpus/packed tests/corpus/found 2> build/fuzz32/log || { cat build/fuzz32/log; exit 1; }; \
	awk 'BEGIN {runs = 0} /number_of_executed_units/ {runs = $$2} END {print "libFuzzer: " runs " packed models, 32 bits"; \
	    exit runs < 2000}' build/fuzz32/log || { cat build/fuzz32/log; exit 1; }

# a long run writes docs/results/faults.json: make check-faults SECONDS=3600 OUT=docs/results/faults.json
SECONDS := 20
check-faults: setup
	$(BIN)/python -m tests.checks.faults $(SECONDS) $(if $(OUT),--out $(OUT))

READS := 200
check-readers: setup
	$(BIN)/python -m tests.read_damaged $(READS) $(if $(OUT),--out $(OUT))

check-supply-chain: setup
	$(BIN)/python -m pytest -rs tests/checks/supply_chain.py

# the same models at every run; docs/reference/files.md has the result of a long run
check-programs: fuzzers
	@command -v clang++ >/dev/null || { echo 'check-programs: skipped, clang++ is not installed'; exit 0; }; \
	ASAN_OPTIONS=malloc_context_size=0:quarantine_size_mb=8 build/fuzz/edgernn_fuzz_programs $(PROGRAMS)

check-gpu: setup
	$(BIN)/python -m pytest -rs --check gpu tests/test_triton.py tests/test_cuda.py

check-instruction-sets: setup
	$(BIN)/python -m pytest $(SPREAD) -rs --check instruction-sets tests/test_native_op.py tests/test_fused.py

check-models: setup
	$(BIN)/python -m tests.use_mutants $(MODELS) $(if $(OUT),--out $(OUT))

check-foreign: setup
	EDGERNN_FOREIGN="$(FOREIGN)" $(BIN)/python -m pytest -rs tests/checks/foreign_models.py

check-arm: setup
	$(BIN)/python -m pytest -n auto -rs tests/checks/arm.py

check-apps: setup
	$(BIN)/python -m pytest -n auto --dist loadfile -rs tests/checks/apps.py tests/checks/word_apps.py tests/checks/vad_apps.py tests/checks/shipped_words.py \
		tests/checks/wake_tutorial.py

check-wasm: setup
	$(BIN)/python -m pytest -rs tests/checks/wasm.py

check-mcu: setup
	EDGERNN_FOREIGN="$(FOREIGN)" $(BIN)/python -m pytest -n auto -rs tests/checks/firmware.py

# regenerates the generated parts of docs and C++, then builds the site
docs: setup
	$(BIN)/python -m docs.generate
	$(BIN)/python runtime/csrc/generate.py
	$(MAKE) docs-site

docs-site check-docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# formats Python, C, C++ and CUDA
format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	@$(BIN)/clang-format -i $(NATIVE)

check-format: setup
	@$(BIN)/clang-format --dry-run --Werror $(NATIVE)

clean:
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
