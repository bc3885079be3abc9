# SPDX-License-Identifier: Apache-2.0
"""Generates the C header of a model, and its C source with the weights."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.firmware.bad_samples import check, step_comment
from edgernn.runtime.firmware.column_code import column_matrix, rows_table, sum_biases, sum_places
from edgernn.runtime.firmware.equations import mapped_vectors
from edgernn.runtime.firmware.layer_code import code, drive_state, record
from edgernn.runtime.firmware.layer_parts import (
    Field,
    LayerKind,
    depth,
    kind_key,
    kind_of,
    largest_quantised,
    quantised,
    workspace,
)
from edgernn.runtime.firmware.model_content import LayerContent, ModelContent, layer_content
from edgernn.runtime.firmware.pointwise_c import block_comment, float_literal, identifier
from edgernn.runtime.firmware.step_code import BYTES, Constants, StepCode, step_workspace
from edgernn.runtime.firmware.weight_arrays import (
    BLOCK_ROWS,
    GROUP_ROWS,
    gate_biases,
    gate_matrix,
    in_blocks,
    in_groups,
)
from edgernn.runtime.input_check import OnNonfinite
from edgernn.runtime.step_graph.content import place
from edgernn.runtime.step_graph.steps import Branch, Fft, Operand, Recurrent
from edgernn.runtime.step_graph.views import Kind, Value
from edgernn.runtime.weights import Weight

# members of the state that are no arrays
_SCALARS = ("updates", "nonfinite")


class ModelCode:
    """Generator of the C header and source of a model.

    After a call of the method `source`, `weight_bytes` is the size of all constant arrays in bytes.

    Args:
        model: Content of the exported model.
        path: Path of the model's file, for messages, and its name for comments.
        name: Prefix of the C functions, and name of the files.
        on_nonfinite: Treatment of x with a NaN or infinity: "error" refuses x; "hold" replaces the number by the last
            finite one of its channel; "reset" first restores the initial state, and then does the same as "hold".
    """

    def __init__(self, model: ModelContent, path: Path, name: str, on_nonfinite: OnNonfinite = "error") -> None:
        self._model, self._name, self._source, self._on_nonfinite = model, name, path.name, on_nonfinite
        self._type = "".join(part.capitalize() for part in name.split("_"))
        self._state, self._macro = f"{self._type}State", name.upper()
        self._constants = Constants()
        self._kinds: dict[Any, LayerKind] = {}
        # steps may share a layer
        layers = {id(step.layer): step for step in model.layers}
        self.layers = [layer_content(step, path) for step in layers.values()]
        self._indices = {key: index for index, key in enumerate(layers)}
        self._layer_kinds = [self._kind(layer) for layer in self.layers]
        # states of the model, then the drives of layers whose rule has one
        self._states = list(model.states)
        self._driven = [step for step in model.layers if self._kind_of(step).rule.has_drive]
        for step in self._driven:
            self._states.append(Value(Kind.STATE, step.rows, np.zeros(step.rows, np.float32)))
            step.states.append(Operand(self._states[-1], 0, []))
            step.widths.append(1)
        sizes = [value.size for value in self._states]
        self._places = {value: sum(sizes[:k]) for k, value in enumerate(self._states)}
        starts = [np.asarray(value.numbers, np.float32).ravel() for value in self._states]
        self._starts = np.concatenate([np.zeros(0, np.float32), *starts])
        self._arena = place(model.steps, 1)
        x = "model->held" if self._holds else "x"
        self._code = StepCode(self._constants, self._places, x, self._run_layer, model.quantises)

    @property
    def weight_bytes(self) -> int:
        """Size of all constant arrays in bytes, after a call of the method `source`."""
        return self._constants.bytes

    def _kind(self, layer: LayerContent) -> LayerKind:
        key = kind_key(layer)
        if key not in self._kinds:
            same = (identifier(kind.name) == identifier(layer.name) for kind in self._kinds.values())
            self._kinds[key] = kind_of(layer, sum(same))
        return self._kinds[key]

    def _kind_of(self, step: Recurrent) -> LayerKind:
        return self._layer_kinds[self._indices[id(step.layer)]]

    @property
    def _holds(self) -> bool:
        return self._on_nonfinite != "error"

    @property
    def _neurons(self) -> int:
        return sum(step.steps * step.rows * step.outputs for step in self._model.layers)

    def fields(self) -> list[Field]:
        """Return the arrays and counters of the C struct that holds the states and the workspace of this model."""
        model = self._model
        listed = [Field("float", "state", len(self._starts), "states, kept from step to step")]
        if self._holds:
            listed.append(Field("float", "held", model.inputs, "last finite numbers of x"))
        listed.append(Field("float", "arena", self._arena, "values inside a step"))
        # steps share their workspaces
        shared = [field for step in model.steps for field in step_workspace(step, model.quantises)]
        stack = zip(self.layers, self._layer_kinds, strict=True)
        shared += [field for layer, kind in stack for field in workspace(layer, kind)]
        largest: dict[str, Field] = {}
        for field in sorted(shared, key=lambda field: field.count):
            largest[field.name] = field
        # products read pairs of the int16_t numbers, whose counts are multiples of 4
        listed += sorted(largest.values(), key=lambda field: (-BYTES[field.type], field.type))
        if self._holds:
            listed.append(Field("int32_t", "nonfinite", 1, "steps with a number of x that was not finite"))
        listed.append(Field("int32_t", "updates", 1, "number of updates in the last step"))
        return [field for field in listed if field.count]

    @property
    def state_bytes(self) -> int:
        """Size in bytes of the C struct with the model's states and workspace."""
        fields = self.fields()
        # two neighbouring fields of 16 bits share a word
        ends = sum(field.count * BYTES[field.type] for field in fields)
        return ends + ends % 4

    def header(self) -> str:
        """Return the C header: the model's sizes, the struct of its state and its functions."""
        macro, model = self._macro, self._model
        words = model.vocabulary > 0
        sizes = {"OUTPUT": (model.outputs, "numbers in y"), "NEURONS": (self._neurons, "neurons of all layers")}
        if words:
            sizes = {"VOCABULARY": (model.vocabulary, "words")} | sizes
        else:
            what = "samples that a step reads" if model.is_audio else "numbers in x"
            sizes = {"INPUT": (model.inputs, what)} | sizes
        defines = "\n".join(f"#define {macro}_{key} {value} /* {text} */" for key, (value, text) in sizes.items())
        members = "\n".join(
            f"  {field.type} {field.name}{f'[{field.count}]' * (field.name not in _SCALARS)}; /* {field.comment} */"
            for field in self.fields()
        )
        on_nonfinite = step_comment(self._on_nonfinite, self._model.held_start is not None)
        counter = (
            f"\n/* Returns the number of steps since {self._name}_reset at which x had a NaN or an infinity. */\n"
            f"int32_t {self._name}_nonfinite(const {self._state}* model);\n"
        ) * self._holds
        bad = f"a word outside 0 to {macro}_VOCABULARY - 1" if words else "a number of x that is NaN or infinite"
        return f"""\
{block_comment(self._generated())}

#ifndef {macro}_H_
#define {macro}_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{defines}

/* The state of one stream, {self.state_bytes} bytes, which may be placed in static memory. Its members are private.
 * A copy of it is a saved state. Streams with a state each may share the weights, which stay in flash. */
typedef struct {self._state} {{
{members}
}} {self._state};

typedef enum {self._type}Status {{
  {macro}_OK = 0,
  {macro}_BAD_INPUT = 4 /* {bad} */
}} {self._type}Status;

/* Starts a new sequence. Call it before the first step. */
void {self._name}_reset({self._state}* model);

/* Runs one step: {"a word" if words else "x"} to y. {on_nonfinite} */
{self._signature()};

/* Returns the number of neurons that the last step updated; under the rule delta, of values of h
   that it sent. */
int32_t {self._name}_updates(const {self._state}* model);
{counter}
#ifdef __cplusplus
}}
#endif

#endif /* {macro}_H_ */
"""

    def _signature(self) -> str:
        x = "int32_t word" if self._model.vocabulary else "const float* x"
        return f"{self._type}Status {self._name}_step({self._state}* model, {x}, float* y)"

    def _generated(self) -> str:
        counts: dict[str, int] = {}
        for layer in self.layers:
            text = f"{layer.name} ({layer.inputs}, {layer.hidden})"
            counts[text] = counts.get(text, 0) + 1
        names = ", ".join(f"{text} x {count}" if count > 1 else text for text, count in counts.items())
        about = f" {self._model.about}" if self._model.about else ""
        return f"{names or 'no layer'}. Generated by `edgernn pack --target c` from {self._source}.{about}"

    def source(self) -> str:
        """Return the text of the C source file: the weights as constant arrays, and the functions."""
        kinds = list(self._kinds.values())
        records = [self._record(i) for i in range(len(self.layers))]
        functions = [self._reset(), self._step(), self._getter("updates")]
        functions += [self._getter("nonfinite")] * self._holds
        return "\n".join(
            [
                block_comment(self._generated()),
                "",
                f'#include "{self._name}.h"',
                "",
                *(f'#include "{name}"' for name in self.headers),
                "",
                *(record(kind) for kind in kinds),
                *(code(kind, self._state) for kind in kinds),
                *self._constants.texts,
                *records,
                *functions,
            ]
        )

    @property
    def headers(self) -> list[str]:
        """Names of the headers of the folder engine that the source includes."""
        steps = self._model.steps
        listed = ["edgernn_products.h"] + ["edgernn_fourier.h"] * any(isinstance(step, Fft) for step in steps)
        return listed + ["edgernn_columns.h"] * any(kind.moving for kind in self._kinds.values())

    def _array(self, type: str, name: str, values: NDArray[Any]) -> str:
        """Add a constant array to the C source, and return its name; `type` is the C type of an element."""
        return self._constants.add(type, name, values)

    def _matrix(self, name: str, matrix: Weight) -> Iterator[tuple[str, str]]:
        """Add the arrays of a matrix to the source: its values, and the scales of its rows if the values are int8."""
        field = name.partition("_")[2]
        return zip((field, f"{field}_scales"), self._constants.matrix(name, matrix), strict=False)

    def _record(self, index: int) -> str:
        """Generate the constant struct of layer `index`, and add the arrays of its weights to the source."""
        fields = dict(self._fields_of(index))
        members = "\n".join(f"    .{name} = {value}," for name, value in fields.items())
        kind = self._layer_kinds[index].identifier
        return f"static const struct layer_{kind} layer{index} = {{\n{members}\n}};\n"

    def _fields_of(self, index: int) -> Iterator[tuple[str, str]]:
        layer, kind, prefix = self.layers[index], self._layer_kinds[index], f"layer{index}"
        yield "inputs", str(layer.inputs)
        yield "hidden", str(layer.hidden)
        if kind.cell.mid is not None:
            yield "middle", str(layer.middle)
        if kind.low_rank:
            yield "rank", str(len(layer.weights["Q"].values))
            yield from self._matrix(f"{prefix}_low_rank", layer.weights["Q"])
        if kind.groups:
            yield "groups", str(-(-layer.hidden // layer.group_size))
            yield "group_size", str(layer.group_size)
        for product in kind.products:
            # W has the columns of x, then those of the last x
            first = layer.inputs if product.name == "last" else 0
            columns = slice(first, first + depth(layer, product.name))
            matrix = gate_matrix(layer, product.weight, product.term, product.gates, columns)
            if kind.is_narrow(product):
                assert matrix.scales is not None
                floats = matrix.values * matrix.scales[:, :, None]
                values = in_groups(floats.reshape(len(floats), -1), BLOCK_ROWS)
                yield product.field, self._array("float", f"{prefix}_{product.field}", values)
                continue
            if kind.blocked:
                assert matrix.scales is not None
                matrix = Weight(in_groups(matrix.values, GROUP_ROWS), in_groups(matrix.scales, GROUP_ROWS))
            yield from self._matrix(f"{prefix}_{product.field}", in_blocks(matrix))
        for name in kind.moving:
            yield from self._columns(f"{prefix}_columns_{name}", *column_matrix(layer, kind, name))
        if kind.sums_biased:
            yield "sum_bias", self._array("float", f"{prefix}_sum_bias", sum_biases(layer, kind))
        if kind.moving:
            yield from sum_places(layer, kind).items()
        for name in quantised(kind):
            yield f"most_{name}", float_literal(largest_quantised(depth(layer, name)))
        for mid, field in ((True, "mid_bias"), (False, "bias")):
            if kind.biased[not mid]:
                gates = kind.slots(mid=mid) if kind.blocked else kind.cell.group(mid=mid)
                biases = gate_biases(layer, gates)
                biases = in_groups(biases, BLOCK_ROWS) if kind.blocked else biases
                yield field, self._array("float", f"{prefix}_{field}", biases)
        count = len(kind.cell.vectors)
        vectors = mapped_vectors(kind.cell.map, [layer.weights[f"vector {i}"].floats for i in range(count)])
        for i, vector in enumerate(vectors):
            yield f"vector_{i}", self._array("float", f"{prefix}_vector_{i}", vector)
        for name in kind.rule.weights if kind.rule.equations else ():
            if name == kind.rule.matrix:
                yield from self._matrix(f"{prefix}_{identifier(name)}", layer.weights[name])
            else:
                yield identifier(name), self._array("float", f"{prefix}_{identifier(name)}", layer.weights[name].floats)

    def _columns(self, name: str, matrix: Weight, parts: NDArray[np.int32]) -> Iterator[tuple[str, str]]:
        """Add the arrays of a matrix to the source, for an update rule of the kind COLUMN, such as delta."""
        columns, rows = matrix.values.shape
        arrays = [array for _, array in self._matrix(name, matrix)] if rows else []
        values, scales, *_ = [*arrays, "0", "0"]
        if rows:
            self._constants.texts.append(rows_table(f"{name}_parts", parts))
            self._constants.bytes += parts.nbytes
        part = f"{name}_parts" if rows else "0"
        yield name.partition("_")[2], f"{{{values}, {scales}, {columns}, {rows}, {len(parts)}, {part}}}"

    def _reset(self) -> str:
        lines = []
        starts, steps = self._starts, self._model.steps
        if starts.any():
            start = self._array("float", "start", starts)
            lines.append(f"for (int32_t i = 0; i < {starts.size}; ++i) model->state[i] = {start}[i];")
        elif starts.size:
            lines.append(f"for (int32_t i = 0; i < {starts.size}; ++i) model->state[i] = 0.0f;")
        if any(view.value.padded for step in steps for view in step.writes()):
            lines.append(f"for (int32_t i = 0; i < {self._arena}; ++i) model->arena[i] = 0.0f;")
        for step in self._driven:
            lines += self._code.each_row(step, self._find_drive)
        reset = f"void {self._name}_reset({self._state}* model)"
        if not self._holds:
            return _function(reset, [*lines, "model->updates = 0;"])
        start = "0.0f"
        if self._model.held_start is not None:
            start = f"{self._array('float', 'held_start', self._model.held_start)}[i]"
        whole = ["reset_state(model);", "model->nonfinite = model->updates = 0;"]
        whole.append(f"for (int32_t i = 0; i < {self._macro}_INPUT; ++i) model->held[i] = {start};")
        return _function(f"static void reset_state({self._state}* model)", lines) + "\n" + _function(reset, whole)

    def _find_drive(self, step: Recurrent, states: Sequence[str]) -> str:
        """Return the call that computes the drive of a layer, whose states are given as C expressions."""
        index, kind = self._indices[id(step.layer)], self._kind_of(step)
        return f"find_drive_{kind.identifier}(&layer{index}, {states[drive_state(kind)]}, {states[-1]});"

    def _run_layer(self, step: Recurrent, x: str, states: Sequence[str]) -> Iterator[str]:
        """Generate the statements that run a layer on an input and states, given as C expressions."""
        index = self._indices[id(step.layer)]
        if step in self._driven and step.states[0].value.kind != Kind.STATE:
            # the states are new at each step of the model
            yield self._find_drive(step, states)
        kind = self._layer_kinds[index].identifier
        yield f"updates += step_{kind}(&layer{index}, model, {', '.join([x, *states])});"

    def _getter(self, field: str) -> str:
        return _function(f"int32_t {self._name}_{field}(const {self._state}* model)", [f"return model->{field};"])

    def _step(self) -> str:
        model, bad = self._model, f"return {self._macro}_BAD_INPUT;"
        lines = []
        if model.vocabulary:
            lines.append(f"if (word < 0 || word >= {self._macro}_VOCABULARY) {bad}")
            lines.append("const float x[] = {(float)word};")
        else:
            lines += check(self._on_nonfinite, f"{self._macro}_INPUT", bad)
        lines.append("int32_t updates = 0;")
        opened: list[Branch] = []
        for step in model.steps:
            lines += self._closed(opened, step.branches)
            if isinstance(step, Branch):
                lines.append(f"{'  ' * len(opened)}{self._code.condition(step)} {{")
                opened.append(step)
            else:
                lines += ["  " * len(opened) + line for line in self._code.lines(step)]
        lines += self._closed(opened, ())
        return _function(self._signature(), [*lines, "model->updates = updates;", f"return {self._macro}_OK;"])

    @staticmethod
    def _closed(opened: list[Branch], branches: Sequence[Branch]) -> Iterator[str]:
        """End the blocks of branches other than those of the next step."""
        while opened and tuple(opened) != tuple(branches):
            opened.pop()
            yield "  " * len(opened) + "}"


def _function(head: str, lines: Sequence[str]) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"{head} {{\n{body}\n}}\n"
