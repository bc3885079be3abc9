# SPDX-License-Identifier: Apache-2.0
"""Corrupted exported files and packed models, changed bytewise or structurally; deterministic for each number."""

import json
import random
import struct
import zlib
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTEGERS = (0, -1, 1, 2, 3, 7, 255, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
VALUES: tuple[Any, ...] = (None, True, -1, 0, 2**40, 2**70, 1e308, float("nan"), float("inf"), "", "gru", [], [[]], {})
# replaced in the serialised bytes by a name that is invalid UTF-8, which the protobuf library refuses to write
_NOT_UTF8 = "Qq0notUTF8Qq"
_TEXT = ("", "x", "y", "layer0.h", "layer0.W", "ai.edgernn", "a\nb", "n" * 5000, "../../etc/passwd", _NOT_UTF8)


def mutant(content: bytes, number: int) -> tuple[str, bytes]:
    """Return a file with one to three changes, and a description of the changes."""
    draw = random.Random(number)
    changes = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        kind = draw.choice((by_byte, by_field, by_field, by_field, by_metadata))
        try:
            change, content = kind(content, draw)
        # an earlier change may have made the file unreadable
        except Exception:
            change, content = by_byte(content, draw)
        changes.append(change)
    return "; ".join(changes), content


def by_byte(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Flip, replace, remove or repeat bytes, or truncate the file."""
    at = draw.randrange(len(content) + 1)
    size = draw.choice((1, 2, 8, 100))
    before, part, after = content[:at], content[at : at + size], content[at + size :]
    kind = draw.choice(("flip", "random", "remove", "repeat", "cut"))
    if kind == "flip":
        part = bytes(byte ^ 1 << draw.randrange(8) for byte in part)
    elif kind == "random":
        part = draw.randbytes(len(part))
    elif kind == "remove":
        part = b""
    elif kind == "repeat":
        part *= 2
    else:
        part = after = b""
    return f"{kind} {size} bytes at {at}", before + part + after


def by_field(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Change one field at any depth; each field of a message is equally likely."""
    model = onnx.load_from_string(content)
    message: Message = model
    path = ""
    while True:
        field, value = draw.choice(message.ListFields())
        path += f".{field.name}"
        items = value if field.is_repeated else None
        if items is not None and (draw.random() < 0.1 or field.type != FieldDescriptor.TYPE_MESSAGE):
            return f"{path}: {_change_list(message, field, draw)}", _bytes(model)
        if field.type != FieldDescriptor.TYPE_MESSAGE or (items is None and draw.random() < 0.1):
            return f"{path}: {_change_one(message, field, draw)}", _bytes(model)
        if items is not None:
            at = draw.randrange(len(items))
            path, value = f"{path}[{at}]", items[at]
        if isinstance(value, onnx.TensorProto) and draw.random() < 0.1:
            return f"{path}: {_move_out(value, draw)}", _bytes(model)
        message = value
        if not message.ListFields():
            return path, content


def _bytes(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString().replace(_NOT_UTF8.encode(), b"\xff\xfe\x80\xc0" * 3)


def _change_list(message: Message, field: FieldDescriptor, draw: random.Random) -> str:
    items = getattr(message, field.name)
    at, kind = draw.randrange(len(items)), draw.choice(("remove", "repeat", "swap", "empty", "value"))
    if kind == "value" and field.type == FieldDescriptor.TYPE_MESSAGE:
        kind = "remove"
    values = list(items)
    if kind == "remove":
        del values[at]
    elif kind == "repeat":
        values.insert(at, values[at])
    elif kind == "swap":
        other = draw.randrange(len(values))
        values[at], values[other] = values[other], values[at]
    elif kind == "empty":
        values = []
    else:
        values[at] = _value(field, values[at], draw)
    message_class = field.type == FieldDescriptor.TYPE_MESSAGE
    values = [type(v).FromString(v.SerializeToString()) for v in values] if message_class else values
    message.ClearField(field.name)
    getattr(message, field.name).extend(values)
    return f"{kind} {at}"


def _change_one(message: Message, field: FieldDescriptor, draw: random.Random) -> str:
    if field.type == FieldDescriptor.TYPE_MESSAGE or draw.random() < 0.15:
        message.ClearField(field.name)
        return "removed"
    value = _value(field, getattr(message, field.name), draw)
    setattr(message, field.name, value)
    return repr(value)[:60]


def _value(field: FieldDescriptor, before: Any, draw: random.Random) -> Any:
    """Draw another value for a field."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        size = draw.randrange(len(before) + 1)
        return draw.choice((b"", before[:size], before + before, draw.randbytes(len(before)), b"\xff" * len(before)))
    if field.type == FieldDescriptor.TYPE_STRING:
        return draw.choice((*_TEXT, before + "2", before[:-1]))
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return draw.choice((0.0, -1.0, float("nan"), float("inf"), 3e38, 1e-40))
    if field.type == FieldDescriptor.TYPE_ENUM:
        return draw.choice([value.number for value in field.enum_type.values])
    value = draw.choice((*INTEGERS, before - 1, before + 1, before * 2))
    return (value + 2**31) % 2**32 - 2**31 if field.type == FieldDescriptor.TYPE_INT32 else value


def _move_out(tensor: onnx.TensorProto, draw: random.Random) -> str:
    """Turn a tensor's data into external data."""
    place = draw.choice(("/etc/passwd", "../../etc/passwd", "model.onnx", "no-such-file", ""))
    keys = {"location": place, "offset": str(draw.choice(INTEGERS)), "length": str(draw.choice(INTEGERS))}
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in keys.items():
        if draw.random() < 0.8:
            tensor.external_data.add(key=key, value=value)
    return f"external {keys}"


def by_metadata(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Remove or replace one value at any depth of the metadata entry."""
    model = onnx.load_from_string(content)
    (entry,) = (p for p in model.metadata_props if p.key == "edgernn")
    if draw.random() < 0.1:
        text = draw.choice(("", "null", "[" * 100_000, '{"a":' * 100_000, "1" * 10_000, entry.value[:-2], _NOT_UTF8))
        entry.value = text
        return f"metadata: {text[:40]!r}", _bytes(model)
    node = info = json.loads(entry.value)
    path = "metadata"
    while True:
        key = draw.choice(list(node) if isinstance(node, dict) else range(len(node)))
        path += f".{key}"
        if not isinstance(node[key], dict | list) or not node[key] or draw.random() < 0.15:
            break
        node = node[key]
    if draw.random() < 0.2:
        del node[key]
        path += ": removed"
    else:
        node[key] = draw.choice(VALUES)
        path += f": {node[key]!r}"
    entry.value = json.dumps(info)
    return path, _bytes(model)


def packed_mutant(content: bytes, draw: random.Random) -> bytes:
    """Return a corrupted packed model with a correct size and checksum."""
    head, body = content[:64], by_byte(content[64:], draw)[1]
    if draw.random() < 0.3:
        # all of the header after size and checksum
        head = head[:28] + by_byte(head[28:], draw)[1][:36].ljust(36, b"\0")
    return head[:16] + struct.pack("<QI", 64 + len(body), zlib.crc32(body)) + head[28:] + body
