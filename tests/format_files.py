# SPDX-License-Identifier: Apache-2.0
"""Writers of small files in the supported formats, byte by byte after the format specifications."""

import io
import struct
import zipfile
import zlib

import numpy as np

from edgernn.training.papers.formats.physionet import OUTCOMES, PARAMETERS
from tests.training_helpers import PACK


def write_packed(path, content):
    """Write the file, compressed as its suffix says, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PACK[path.suffix if path.suffix in PACK else ""](content))
    return path


def npz_bytes(**arrays):
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def npz_with(header, body=b"", version=1, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        text = header.encode().ljust(118) + b"\n"
        archive.writestr("x.npy", b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(text)) + text + body)
    return out.getvalue()


def header(descr="'<f8'", shape="(2,)", order="False"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}"


# MATLAB files


def element(kind, data, order="<"):
    if len(data) <= 4:
        packed = struct.pack(order + "I", len(data) << 16 | kind)
        return packed + data.ljust(4, b"\0")
    return struct.pack(order + "II", kind, len(data)) + data + bytes(-len(data) % 8)


NUMBERS = {"i1": 1, "u1": 2, "i2": 3, "u2": 4, "i4": 5, "u4": 6, "f4": 7, "f8": 9, "i8": 12, "u8": 13}
CLASSES = {"f8": 6, "f4": 7, "i1": 8, "u1": 9, "i2": 10, "u2": 11, "i4": 12, "u4": 13, "i8": 14, "u8": 15}


def matrix(name, array, stored=None, order="<", packed=False, flags=0):
    dtype = array.dtype.str[1:]
    stored = stored or dtype
    body = element(6, struct.pack(order + "II", CLASSES[dtype] | flags, 0), order)
    body += element(5, struct.pack(f"{order}{array.ndim}i", *array.shape), order)
    body += element(1, name.encode(), order)
    body += element(NUMBERS[stored], array.astype(order + stored).tobytes(order="F"), order)
    whole = struct.pack(order + "II", 14, len(body)) + body
    if not packed:
        return whole
    squeezed = zlib.compress(whole)
    return struct.pack(order + "II", 15, len(squeezed)) + squeezed


def mat_bytes(*matrices, order="<"):
    header = b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(116) + bytes(8)
    return header + struct.pack(order + "H", 0x0100) + (b"IM" if order == "<" else b"MI") + b"".join(matrices)


def svhn_bytes(x, y, packed=True):
    return mat_bytes(matrix("X", x, packed=packed), matrix("y", y, stored="u1", packed=packed))


X, Y = np.zeros((32, 32, 3, 4), np.uint8), np.ones((4, 1), np.uint8)


def cifar_bytes(x, y):
    """Return CIFAR-10 records: a label, then the red, green and blue planes in row-major order."""
    return b"".join(
        bytes([label]) + b"".join(image[:, :, c].tobytes() for c in range(3)) for image, label in zip(x, y, strict=True)
    )


RECORD = "Time,Parameter,Value\n00:00,RecordID,{}\n00:00,Age,54\n00:00,Weight,-1\n00:07,GCS,15\n48:00,pH,7.36\n"
OTHER = "Time,Parameter,Value\r\n00:00,RecordID,{}\r\n03:30,TroponinT,0.05\r\n"
ROWS = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death\n141,6,1,5,-1,0\n132,16,8,8,4,1\n"


def write_physionet(folder, records=None, outcomes=ROWS):
    for record, content in (records or {141: RECORD.format(141), 132: OTHER.format(132)}).items():
        write_packed(folder / "set-a" / f"{record}.txt", content.encode())
    return [folder / "set-a", write_packed(folder / "Outcomes-a.txt", outcomes.encode())]


def packed_stays(**changes):
    """Return the npz archive of the records that write_physionet writes."""
    names = ("RecordID", "TroponinT", "RecordID", "Age", "Weight", "GCS", "pH")
    arrays = {
        "record_id": np.array([132, 141], np.int32),
        "row_start": np.array([0, 2, 7], np.int32),
        "minute": np.array([0, 210, 0, 0, 0, 7, 2880], np.int16),
        "param": np.array([PARAMETERS.index(name) for name in names], np.uint8),
        "value": np.array([132, 0.05, 141, 54, -1, 15, 7.36], np.float32),
        "param_names": np.array(PARAMETERS),
        "outcome_names": np.array(OUTCOMES),
        "outcomes": np.array([[132, 16, 8, 8, 4, 1], [141, 6, 1, 5, -1, 0]], np.int32),
    }
    return npz_bytes(**{**arrays, **changes})
