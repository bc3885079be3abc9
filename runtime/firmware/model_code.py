# SPDX-License-Identifier: Apache-2.0
"""Generates the C header of a model, and its C source with the weights."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.firmware.bad_samples import check, step_comment
from edgernn.runtime.firmware.column_code import column_matrix, rows_table, sum_biases, sum_places
from edgernn.runtime.firmware.equations import mapped_vectors
from edgernn.runtime.firmware.frontend_code import frontend_record
from edgernn.runtime.firmware.layer_code import code, record
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
from edgernn.runtime.firmware.model_content import LayerContent, ModelContent
from edgernn.runtime.firmware.pointwise_c import array, block_comment, float_literal, identifier
from edgernn.runtime.firmware.weight_arrays import gate_biases, gate_matrix, in_blocks
from edgernn.runtime.input_check import OnNonfinite
from edgernn.runtime.weights import Weight

# members of the state that are no arrays
_SCALARS = ("updates", "nonfinite")
_BYTES = {"float": 4, "int8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4}


class ModelCode:
    """Generator of the C header and source of a model.

    After a call of the method `source`, `weight_bytes` is the size of all constant arrays in bytes.

    Args:
        model: Content of the exported model.
        name: Prefix of the C functions, and name of the files.
        source: Name of the model's file, for comments.
        on_nonfinite: Treatment of x with a NaN or infinity: "error" refuses x; "hold" replaces the number by the last
            finite one of its channel; "reset" first restores the initial state, and then does the same as "hold".
    """

    def __init__(self, model: ModelContent, name: str, source: str, on_nonfinite: OnNonfinite = "error") -> None:
        self._model, self._name, self._source, self._on_nonfinite = model, name, source, on_nonfinite
        self._type = "".join(part.capitalize() for part in name.split("_"))
        self._state, self._macro = f"{self._type}State", name.upper()
        self._arrays: list[str] = []
        self.weight_bytes = 0
        self._starts: list[NDArray[np.float32]] = []
        self._kinds: dict[Any, LayerKind] = {}
        self._layer_kinds = [self._kind(layer) for layer in model.layers]
        # indices in the state array of the states of each layer
        self._frontend_places = [self._place(start) for start in model.frontend.starts] if model.frontend else []
        self._places = [self._layer_places(layer) for layer in model.layers]

    def _kind(self, layer: LayerContent) -> LayerKind:
        key = kind_key(layer)
        if key not in self._kinds:
            same = (identifier(kind.name) == identifier(layer.name) for kind in self._kinds.values())
            self._kinds[key] = kind_of(layer, sum(same))
        return self._kinds[key]

    def _place(self, start: NDArray[np.float32]) -> int:
        place = sum(map(len, self._starts))
        self._starts.append(start)
        return place

    def _layer_places(self, layer: LayerContent) -> list[int]:
        drive = [np.zeros(1, np.float32)] * layer.rule.has_drive
        return [self._place(start) for start in [*layer.starts, *drive]]

    @property
    def _inputs(self) -> int:
        return self._model.frontend.hop if self._model.frontend else self._model.inputs

    @property
    def _holds(self) -> bool:
        return self._on_nonfinite != "error"

    @property
    def _neurons(self) -> int:
        return sum(layer.hidden for layer in self._model.layers)

    @property
    def _copies_input(self) -> bool:
        model = self._model
        return model.embedding is not None or model.frontend is not None or model.mean is not None

    def fields(self) -> list[Field]:
        """Return the arrays and counters of the C struct that holds the states and the workspace of this model."""
        model = self._model
        listed = [Field("float", "state", sum(map(len, self._starts)), "states of all layers")]
        if self._holds:
            listed.append(Field("float", "held", self._inputs, "last finite numbers of x"))
        if self._copies_input:
            listed.append(Field("float", "x", model.inputs, "input of the first layer"))
        if model.frontend:
            listed.append(Field("float", "spectrum", 5 * (model.frontend.filters.shape[1] - 1) + 1, "of a window"))
        stack = zip(model.layers, self._layer_kinds, strict=True)
        # layers share their workspaces
        for shared in zip(*(workspace(layer, kind) for layer, kind in stack), strict=True):
            largest = max(shared, key=lambda field: field.count)
            listed += [largest] * (largest.count > 0)
        if self._holds:
            listed.append(Field("int32_t", "nonfinite", 1, "steps with a number of x that was not finite"))
        return [*listed, Field("int32_t", "updates", 1, "number of updates in the last step")]

    @property
    def state_bytes(self) -> int:
        """Size in bytes of the C struct with the model's states and workspace."""
        fields = self.fields()
        # two neighbouring fields of 16 bits share a word
        ends = sum(field.count * _BYTES[field.type] for field in fields)
        return ends + ends % 4

    def header(self) -> str:
        """Return the C header: the model's sizes, the struct of its state and its functions."""
        macro, model = self._macro, self._model
        words = model.embedding is not None
        sizes = {"OUTPUT": (model.outputs, "numbers in y"), "NEURONS": (self._neurons, "neurons of all layers")}
        if model.embedding is not None:
            sizes = {"VOCABULARY": (len(model.embedding.values), "words")} | sizes
        else:
            what = "samples that a step reads" if model.frontend else "numbers in x"
            sizes = {"INPUT": (self._inputs, what)} | sizes
        defines = "\n".join(f"#define {macro}_{key} {value} /* {text} */" for key, (value, text) in sizes.items())
        members = "\n".join(
            f"  {field.type} {field.name}{f'[{field.count}]' * (field.name not in _SCALARS)}; /* {field.comment} */"
            for field in self.fields()
        )
        on_nonfinite = step_comment(self._on_nonfinite, bool(self._held_start))
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
        x = "int32_t word" if self._model.embedding is not None else "const float* x"
        return f"{self._type}Status {self._name}_step({self._state}* model, {x}, float* y)"

    def _generated(self) -> str:
        names = ", ".join(f"{layer.name} ({layer.inputs}, {layer.hidden})" for layer in self._model.layers)
        return f"{names}. Generated by `edgernn pack --target c` from {self._source}."

    def source(self) -> str:
        """Return the text of the C source file: the weights as constant arrays, and the functions."""
        kinds = list(self._kinds.values())
        records = [self._record(i) for i in range(len(self._model.layers))]
        functions = [self._reset(), self._step(), self._getter("updates")]
        functions += [self._getter("nonfinite")] * self._holds
        includes = ["edgernn_products.h"] + ["edgernn_frontend.h"] * (self._model.frontend is not None)
        includes += ["edgernn_columns.h"] * any(kind.moving for kind in kinds)
        return "\n".join(
            [
                block_comment(self._generated()),
                "",
                f'#include "{self._name}.h"',
                "",
                *(f'#include "{name}"' for name in includes),
                "",
                *(record(kind) for kind in kinds),
                *(code(kind, self._state) for kind in kinds),
                *self._arrays,
                *records,
                *functions,
            ]
        )

    def _array(self, type: str, name: str, values: NDArray[Any]) -> str:
        """Add a constant array to the C source, and return its name; `type` is the C type of an element."""
        self._arrays.append(array(type, name, values))
        self.weight_bytes += values.size * _BYTES[type]
        return name

    def _matrix(self, name: str, matrix: Weight) -> Iterator[tuple[str, str]]:
        """Add the arrays of a matrix to the source: its values, and the scales of its rows if the values are int8."""
        field = name.partition("_")[2]
        yield field, self._array("float" if matrix.scales is None else "int8_t", name, matrix.values)
        if matrix.scales is not None:
            yield f"{field}_scales", self._array("float", f"{name}_scales", matrix.scales)

    def _record(self, index: int) -> str:
        """Generate the constant struct of layer `index`, and add the arrays of its weights to the source."""
        fields = dict(self._fields_of(index))
        members = "\n".join(f"    .{name} = {value}," for name, value in fields.items())
        kind = self._layer_kinds[index].identifier
        return f"static const struct layer_{kind} layer{index} = {{\n{members}\n}};\n"

    def _fields_of(self, index: int) -> Iterator[tuple[str, str]]:
        layer, kind, prefix = self._model.layers[index], self._layer_kinds[index], f"layer{index}"
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
        yield "states", f"{{{', '.join(map(str, self._places[index]))}}}"
        for product in kind.products:
            # W has the columns of x, then those of the last x
            first = layer.inputs if product.name == "last" else 0
            columns = slice(first, first + depth(layer, product.name))
            matrix = gate_matrix(layer, product.weight, product.term, product.gates, columns)
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
                biases = gate_biases(layer, kind.cell.group(mid=mid))
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
            self._arrays.append(rows_table(f"{name}_parts", parts))
            self.weight_bytes += parts.nbytes
        part = f"{name}_parts" if rows else "0"
        yield name.partition("_")[2], f"{{{values}, {scales}, {columns}, {rows}, {len(parts)}, {part}}}"

    def _reset(self) -> str:
        lines = []
        starts = np.concatenate(self._starts)
        if starts.any():
            lines.append(f"for (int32_t i = 0; i < {starts.size}; ++i) model->state[i] = start[i];")
            self._array("float", "start", starts)
        else:
            lines.append(f"for (int32_t i = 0; i < {starts.size}; ++i) model->state[i] = 0.0f;")
        for i, kind in enumerate(self._layer_kinds):
            if kind.rule.has_drive:
                lines.append(f"find_drive_{kind.identifier}(&layer{i}, model);")
        reset = f"void {self._name}_reset({self._state}* model)"
        if not self._holds:
            return _function(reset, [*lines, "model->updates = 0;"])
        start = f"{self._held_start}[i]" if self._held_start else "0.0f"
        whole = ["reset_state(model);", "model->nonfinite = model->updates = 0;"]
        whole.append(f"for (int32_t i = 0; i < {self._macro}_INPUT; ++i) model->held[i] = {start};")
        return _function(f"static void reset_state({self._state}* model)", lines) + "\n" + _function(reset, whole)

    @property
    def _held_start(self) -> str:
        """Name of the C array whose numbers replace NaN in x before the first finite number, or "" if 0 replaces it."""
        # the mean of a model with a front end is that of its features
        return "input_mean" * (self._model.mean is not None and self._model.frontend is None)

    def _getter(self, field: str) -> str:
        return _function(f"int32_t {self._name}_{field}(const {self._state}* model)", [f"return model->{field};"])

    def _step(self) -> str:
        lines = [*self._input(), "int32_t updates = 0;"]
        x = "model->x" if self._copies_input else self._x
        for i, kind in enumerate(self._layer_kinds):
            lines.append(f"updates += step_{kind.identifier}(&layer{i}, model, {x});")
            x = f"model->state + {self._places[i][0]}"
        lines += [*self._output(x), "model->updates = updates;", f"return {self._macro}_OK;"]
        return _function(self._signature(), lines)

    def _input(self) -> Iterator[str]:
        """Generate the code that checks x and applies the embedding, the audio front end and the standardisation."""
        model, bad = self._model, f"return {self._macro}_BAD_INPUT;"
        x = self._x
        if model.embedding is not None:
            yield f"if (word < 0 || word >= {self._macro}_VOCABULARY) {bad}"
            list(self._matrix("of_embedding", model.embedding))
            value = f"(float)of_embedding[word * {model.inputs} + i]"
            value += " * of_embedding_scales[word]" * (model.embedding.scales is not None)
            yield f"for (int32_t i = 0; i < {model.inputs}; ++i) model->x[i] = {value};"
            x = "model->x"
        else:
            yield from check(self._on_nonfinite, f"{self._macro}_INPUT", bad)
        if model.frontend is not None:
            yield from self._features()
            x = "model->x"
        if model.mean is not None and model.std is not None:
            self._array("float", "input_mean", model.mean)
            self._array("float", "input_std", model.std)
            yield f"for (int32_t i = 0; i < {model.inputs}; ++i) {{"
            yield f"  model->x[i] = ({x}[i] - input_mean[i]) / input_std[i];"
            yield "}"

    @property
    def _x(self) -> str:
        return "model->held" if self._holds else "x"

    def _features(self) -> Iterator[str]:
        frontend = self._model.frontend
        assert frontend is not None
        self._arrays.append(frontend_record(frontend, self._model.inputs, self._array))
        places = [f"model->state + {place}" for place in self._frontend_places]
        samples = places.pop(0) if len(frontend.window) > frontend.hop else "0"
        yield f"edgernn_features(&frontend, edgernn_feature_{frontend.normalisation}, {self._x}, {samples},"
        yield f"                 {places[0] if places else '0'}, model->spectrum, model->x);"

    def _output(self, h: str) -> Iterator[str]:
        model, hidden = self._model, self._model.layers[-1].hidden
        yield f"for (int32_t i = 0; i < {self._macro}_OUTPUT; ++i) {{"
        if model.head is None:
            yield f"  y[i] = ({h})[i];"
        else:
            weights, bias = model.head
            # a tied head shares the matrix of the embedding
            tied = model.embedding is not None and np.array_equal(weights.floats, model.embedding.floats)
            matrix = "of_embedding" if tied else "of_head"
            if not tied:
                list(self._matrix(matrix, weights))
            self._array("float", "head_bias", bias.floats)
            row = f"{matrix} + i * {hidden}"
            if weights.scales is not None:
                product = f"{matrix}_scales[i] * edgernn_float_product({row}, {h}, {hidden})"
                yield f"  y[i] = head_bias[i] + {product};"
            else:
                yield "  y[i] = head_bias[i];"
                yield f"  edgernn_products_1({row}, {h}, {hidden}, &y[i]);"
        yield "}"


def _function(head: str, lines: Sequence[str]) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"{head} {{\n{body}\n}}\n"
