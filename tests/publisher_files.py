# SPDX-License-Identifier: Apache-2.0
"""Small data sets in the files of their publishers: the texts of HAPT, and WFDB records as PhysioNet has them."""

import itertools

import numpy as np

# codes of annotations in the MIT format
CODES = {"N": 1, "L": 2, "V": 5, "F": 6, "A": 8, "/": 12, "~": 14, "+": 28, "[": 32, "]": 33}


def write_hapt(folder, arrays):
    """Write the arrays of hapt.npz as the publisher's folders RawData, Train and Test."""
    for name in ("RawData", "Train", "Test"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    lines = []
    for i, (experiment, user) in enumerate(arrays["exp_user"].tolist()):
        begin, end = arrays["offset"][i : i + 2]
        for kind, columns in (("acc", slice(0, 3)), ("gyro", slice(3, 6))):
            rows = [" ".join(repr(float(v)) for v in row) for row in arrays["x"][begin:end, columns]]
            path = folder / f"RawData/{kind}_exp{experiment:02d}_user{user:02d}.txt"
            path.write_text("\n".join(rows) + "\n")
        label = arrays["label"][begin:end]
        cuts = [0, *(np.flatnonzero(np.diff(label)) + 1).tolist(), len(label)]
        for first, last in itertools.pairwise(cuts):
            # samples are counted from 1, and the last one belongs to the stretch
            if label[first]:
                lines.append(f"{experiment} {user} {label[first]} {first + 1} {last}")
    (folder / "RawData/labels.txt").write_text("\n".join(lines) + "\n")
    for part in ("Train", "Test"):
        users = np.repeat(arrays[f"{part.lower()}_users"], 3)
        (folder / part / f"subject_id_{part.lower()}.txt").write_text("".join(f"{user}\n" for user in users))


def write_wfdb(folder, name, signals, annotations, names=("MLII", "V5"), rate=360):
    """Write a record: signals (S, signals) of 12 bits in format 212, and annotations [(sample, symbol)]."""
    folder.mkdir(parents=True, exist_ok=True)
    signals = np.asarray(signals)
    flat = [int(value) & 0xFFF for value in signals.reshape(-1)]
    content = bytearray()
    for first, second in zip(flat[::2], [*flat[1::2], 0], strict=False):
        content += bytes([first & 0xFF, first >> 8 | second >> 8 << 4, second & 0xFF])
    (folder / f"{name}.dat").write_bytes(content[: (3 * len(flat) + 1) // 2])
    lines = [f"{name} {len(names)} {rate} {len(signals)}"]
    for column, lead in zip(signals.T, names, strict=True):
        checksum = np.int64(column.sum()).astype(np.int16)
        lines.append(f"{name}.dat 212 200 11 1024 {column[0]} {checksum} 0 {lead}")
    (folder / f"{name}.hea").write_text("\n".join([*lines, "# 69 M", ""]))
    (folder / f"{name}.atr").write_bytes(annotation_bytes(annotations))


def annotation_bytes(annotations):
    """Return the file of annotations; each has numbers and a text, whose bytes are padded to words."""
    words, last = [], 0
    for sample, symbol in annotations:
        gap, last = sample - last, sample
        if gap >= 2**10:
            # SKIP, and 32 bits with the upper half first
            words += [59 << 10, gap >> 16, gap & 0xFFFF]
            gap = 0
        words += [CODES[symbol] << 10 | gap, 61 << 10 | 1, 63 << 10 | 3, 0x4E28, 0x0000]
    return np.array([*words, 0], "<u2").tobytes()
