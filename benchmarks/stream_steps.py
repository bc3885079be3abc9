# SPDX-License-Identifier: Apache-2.0
"""Run a packed model step by step: `python stream_steps.py OPS TRAIN MODEL INPUT PASSES`.

`benchmarks.skip_work` runs this file under valgrind, which makes every import slow, so it imports few modules. OPS
is the path of the native library, TRAIN of the training library, which has the C loop over steps. MODEL is the packed
model, a file of `edgernn pack`. INPUT has x (T, I) as float32; its T steps run PASSES times. The script prints the
instruction set that the native library uses.
"""

import ctypes
import sys
from pathlib import Path

_ALIGNMENT = 64


def main(ops: str, train: str, model_file: str, input_file: str, passes: str) -> None:
    """Run all steps of the input `passes` times, each from the initial state; print which SIMD kernels ran."""
    library = ctypes.CDLL(ops)
    library.edgernn_message.restype = library.edgernn_isa.restype = ctypes.c_char_p

    def check(status: int) -> None:
        if status != 0:
            raise SystemExit(library.edgernn_message().decode())

    packed, steps = Path(model_file).read_bytes(), Path(input_file).read_bytes()
    data, size, model = _aligned(len(packed)), ctypes.c_size_t(), ctypes.c_void_p()
    ctypes.memmove(data, packed, len(packed))
    file = data, ctypes.c_size_t(len(packed)), ctypes.c_int64(1)
    check(library.edgernn_memory(*file, ctypes.byref(size)))
    memory = _aligned(size.value)
    check(library.edgernn_open(*file, memory, size, ctypes.byref(model)))
    # batch, input, vocabulary, output, state, neurons: EdgernnSizes of edgernn.h
    sizes = (ctypes.c_int64 * 6)()
    check(library.edgernn_sizes(model, sizes))
    x, y = ctypes.create_string_buffer(steps, len(steps)), (ctypes.c_float * sizes[3])()
    count = len(steps) // (sizes[1] * ctypes.sizeof(ctypes.c_float))
    run = ctypes.CDLL(train).edgernn_probe_sequences
    for _ in range(int(passes)):
        numbers = (ctypes.c_int64(number) for number in (1, count, sizes[1]))
        check(run(library.edgernn_step, library.edgernn_reset, model, x, *numbers, y))
    print(library.edgernn_isa().decode())


def _aligned(size: int) -> ctypes.Array[ctypes.c_char]:
    buffer = ctypes.create_string_buffer(size + _ALIGNMENT)
    return (ctypes.c_char * size).from_buffer(buffer, -ctypes.addressof(buffer) % _ALIGNMENT)


if __name__ == "__main__":
    main(*sys.argv[1:])
