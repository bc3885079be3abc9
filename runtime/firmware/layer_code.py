# SPDX-License-Identifier: Apache-2.0
"""Generates the C code for layers of the same kind (`LayerKind`): a struct, and the function that runs a step."""

import textwrap
from collections.abc import Iterator

from edgernn.cell_table import SIZES
from edgernn.runtime.firmware.column_code import column_members, send_values
from edgernn.runtime.firmware.equations import Equation, cell_equation
from edgernn.runtime.firmware.layer_parts import GateProduct, LayerKind, quantised
from edgernn.runtime.firmware.pointwise_c import assign, block_comment, call, function, identifier
from edgernn.runtime.firmware.weight_arrays import BLOCK_ROWS, C_TYPES, GROUP_ROWS


def record(kind: LayerKind) -> str:
    """Generate the C struct for layers of a kind: sizes, indices of states in the state array, and weights."""
    rows = C_TYPES[kind.weights]
    lines = ["int32_t inputs, hidden;"]
    if kind.cell.mid is not None:
        lines.append("int32_t middle;")
    if kind.low_rank:
        lines.append("int32_t rank;")
    if kind.groups:
        lines.append("int32_t groups, group_size;")
    narrow = [product.field for product in kind.products if kind.is_narrow(product)]
    lines += [f"const float* {name};" for name in narrow]
    for name in _matrix_fields(kind):
        if name in narrow:
            continue
        lines.append(f"const {rows}* {name};")
        if kind.int8:
            lines.append(f"const float* {name}_scales;")
    if kind.int8:
        lines += [f"float most_{name}; /* largest quantised number */" for name in quantised(kind)]
    lines += [f"const float* {name};" for name in vector_fields(kind)]
    lines += column_members(kind)
    body = "\n".join(f"  {line}" for line in lines)
    return f"{block_comment(f'A layer of {kind.name}.')}\nstruct layer_{kind.identifier} {{\n{body}\n}};\n"


def _matrix_fields(kind: LayerKind) -> list[str]:
    names = [product.field for product in kind.products]
    names += ["low_rank"] * kind.low_rank
    return names + ([] if kind.rule.matrix is None else [identifier(kind.rule.matrix)])


def vector_fields(kind: LayerKind) -> list[str]:
    """Return the names of the C struct's members for biases, the cell's parameter vectors and the rule's vectors."""
    names = [name for name, has in zip(("mid_bias", "bias"), kind.biased, strict=True) if has]
    names += [f"vector_{i}" for i in range(len(kind.cell.vectors))]
    return names + [identifier(name) for name in kind.rule.weights if kind.rule.equations and name != kind.rule.matrix]


def state_names(kind: LayerKind) -> list[str]:
    """Return the names of the states that a step of a layer reads and writes, in the order of its arguments."""
    names = [f"state_{i}" for i in range(kind.cell.states)] + list(map(identifier, kind.rule.memories))
    return names + ["last"] * kind.cell.reads_last + ["drive"] * kind.rule.has_drive


def drive_state(kind: LayerKind) -> int:
    """Return the index of the state from which the drive of a rule with one decision for all neurons is computed."""
    return min(1, kind.cell.states - 1)


def code(kind: LayerKind, state: str) -> str:
    """Generate the C functions for layers of a kind; `state` is the name of the C struct with the model's state."""
    return "\n".join(_CODE[kind.rule.kind](kind, state).functions())


class _LayerCode:
    """Generator of the C functions for layers of one kind, whose rule updates all neurons; yields or returns C code.

    A subclass for each kind of update rule has what differs.
    """

    # C expressions: the number of neurons that a step computes, neuron i of them, the input, and the result of a step
    _count, _neuron, _input, _result = "layer->hidden", "i", "x", "layer->hidden"
    # what the result counts
    _counted = "updated neurons"

    def __init__(self, kind: LayerKind, state: str) -> None:
        self._kind, self._state, self._id = kind, state, kind.identifier
        self._cell, self._rule = kind.cell, kind.rule

    def functions(self) -> Iterator[str]:
        name = self._kind.name
        if self._cell.mid is not None:
            yield function(f"mid_{self._id}", f"An element of m of {name}.", cell_equation(self._cell.mid))
        update = cell_equation(self._cell.update)
        yield function(f"update_{self._id}", f"The new states of a neuron of {name}.", update, lanes=self._kind.lanes)
        for method, equation in self._rule.equations.items():
            yield function(f"{method}_{self._id}", f"The equation `{method}` of the rule of {name}.", equation)
        yield from self._rule_functions()
        comment = block_comment(f"Runs a step of a layer of {name}. Returns the number of {self._counted}.")
        states = ", ".join(f"float* {name}" for name in state_names(self._kind))
        head = f"static int32_t step_{self._id}(const struct layer_{self._id}* layer, {self._state}* model, "
        head += f"const float* x, {states}) {{"
        head = "\n".join(textwrap.wrap(head, 100, subsequent_indent=" " * 4))
        body = list(self._step())
        if not any("model->" in line for line in body):
            body.insert(0, "(void)model;")
        yield "\n".join([comment, head, *(f"  {line}" if line else "" for line in body), "}\n"])

    def _step(self) -> Iterator[str]:
        yield from self._decide()
        yield from self._work()
        yield from self._remember()
        if self._cell.reads_last:
            yield f"for (int32_t k = 0; k < layer->inputs; ++k) last[k] = {self._input}[k];"
        yield f"return {self._result};"

    def _rule_functions(self) -> Iterator[str]:
        yield from ()

    def _decide(self) -> Iterator[str]:
        yield from ()

    def _remember(self) -> Iterator[str]:
        """Generate the part of a step that computes the states of the update rule after it."""
        yield from ()

    def _work(self) -> Iterator[str]:
        """Generate the part of a step that computes new states; the C code skips it if no neuron is updated."""
        yield from self._prepare()
        if self._cell.mid is not None:
            yield from self._middle()
        yield from self._update()

    def _rule_places(self, index: str, memory_index: str) -> dict[str, str]:
        """Map the names of a rule's weights and memories (its own states) to C expressions."""
        places = {
            name: f"layer->{identifier(name)}[{'0' if name in self._rule.numbers else index}]"
            for name in self._rule.weights
        }
        return places | {name: f"{identifier(name)}[{memory_index}]" for name in self._rule.equation_memories}

    def _prepare(self) -> Iterator[str]:
        """Generate the code of Q h for low-rank weights, and of quantised vectors for int8 weights."""
        kind = self._kind
        if kind.low_rank:
            yield "for (int32_t k = 0; k < layer->rank; ++k) {"
            row = "layer->low_rank + k * layer->hidden"
            if kind.int8:
                product = f"edgernn_float_product({row}, state_0, layer->hidden)"
                yield f"  model->low_rank[k] = layer->low_rank_scales[k] * {product};"
            else:
                yield "  model->low_rank[k] = 0.0f;"
                yield f"  edgernn_{kind.weights}_products_1({row}, state_0, layer->hidden, &model->low_rank[k]);"
            yield "}"
        if kind.int8:
            yield from (self._quantise(name) for name in kind.vectors)

    def _quantise(self, name: str) -> str:
        columns = self._kind.columns(name)
        arguments = f"{self._vector(name)}, {columns}, layer->most_{name}, model->quantised_{name}"
        return f"const EdgernnQuantised quantised_{name} = edgernn_quantise({arguments});"

    def _vector(self, name: str) -> str:
        h = "model->low_rank" if self._kind.low_rank else "state_0"
        return {"x": "x", "last": "last", "h": h, "c": "state_1", "m": "model->middle"}[name]

    def _neurons(self, count: str, neuron: str, result: list[str], *, mid: bool) -> Iterator[str]:
        """Generate a loop over neurons j that computes the pre-activations p of each one, and then a result."""
        kind, gates = self._kind, self._cell.group(mid=mid)
        if kind.blocked:
            yield from self._blocks(count, result, mid=mid)
            return
        yield f"for (int32_t i = 0; i < {count}; ++i) {{"
        yield f"  const int32_t j = {neuron};"
        if gates:
            yield f"  float p[{len(self._cell.gates)}];"
        for i, gate in enumerate(gates):
            start = (
                f"layer->{'mid_bias' if mid else 'bias'}[{len(gates)} * j + {i}]" if kind.biased[not mid] else "0.0f"
            )
            start = f"rule_p[layer->sums[{gate}] + j]" if gate in kind.kept_gates else start
            yield f"  p[{gate}] = {start};"
        for product in kind.products:
            if product.mid == mid:
                lines = self._add_sums(product) if kind.int8 else self._multiply(product)
                yield from (f"  {line}" for line in lines)
        yield from (f"  {line}" for line in result)
        yield "}"

    def _blocks(self, count: str, result: list[str], *, mid: bool) -> Iterator[str]:
        """Generate a loop over blocks of neurons: p of each gate by products of four rows, and then the results."""
        kind, slots = self._kind, self._kind.slots(mid=mid)
        listed = [product for product in kind.products if product.mid == mid]
        narrow = list(filter(kind.is_narrow, listed))
        products = sorted((product for product in listed if product not in narrow), key=lambda p: p.name != "h")
        for product in products:
            yield f"const int8_t* rows_{product.field} = layer->{product.field};"
            yield f"const float* scales_{product.field} = layer->{product.field}_scales;"
        yield f"for (int32_t first = 0; first < {count}; first += {BLOCK_ROWS}) {{"
        yield f"  const int32_t neurons = {count} - first < {BLOCK_ROWS} ? {count} - first : {BLOCK_ROWS};"
        if slots:
            yield f"  const float* const bias = layer->{'mid_bias' if mid else 'bias'} + {len(slots)} * first;"
        for product in narrow:
            place = f"layer->{product.field} + {len(product.gates) * kind.narrow} * first"
            yield f"  const float* const weights_{product.name} = {place};"
        if products:
            yield f"  float p[{len(slots) * BLOCK_ROWS}];"
            yield f"  for (int32_t i = 0; i < neurons; i += {GROUP_ROWS}) {{"
            sources = dict.fromkeys(slots, "bias")
            for product in products:
                yield from (f"    {line}" for line in self._add_groups(product, slots, sources))
            yield "  }"
        yield f"  for (int32_t i = 0; i < neurons; i += {'EDGERNN_LANES' if kind.lanes and not mid else '1'}) {{"
        yield "    const int32_t j = first + i;"
        yield from (f"    {line}" for line in result)
        yield "  }"
        yield "}"

    @staticmethod
    def _add_groups(product: GateProduct, slots: list[int], sources: dict[int, str]) -> Iterator[str]:
        """Generate calls that add a product to p, one for gates that follow each other in p and in the product.

        `sources` maps each gate to the array that its sum starts from; it is changed to p for the product's gates.
        """
        field, runs = product.field, list[list[int]]()
        for gate in product.gates:
            last = runs[-1][-1] if runs else None
            if last is not None and slots.index(gate) == slots.index(last) + 1 and sources[gate] == sources[last]:
                runs[-1].append(gate)
            else:
                runs.append([gate])
        for run in runs:
            place = f"{BLOCK_ROWS * slots.index(run[0])} + i"
            vector = f"&quantised_{product.name}"
            yield f"rows_{field} = edgernn_int8_groups(rows_{field}, {vector}, {len(run)}, scales_{field},"
            yield f"    {sources[run[0]]} + {place}, p + {place}, {BLOCK_ROWS});"
            yield f"scales_{field} += {GROUP_ROWS * len(run)};"
        sources.update(dict.fromkeys(product.gates, "p"))

    @staticmethod
    def _lanes(place: str) -> str:
        """Return the C expression of an argument of neighbouring neurons, whose first number has a place."""
        if place.startswith("edgernn_"):
            return place
        return f"edgernn_same_lanes({place})" if place.endswith("[0]") else f"edgernn_load_lanes(&{place}, left)"

    def _multiply(self, product: GateProduct) -> Iterator[str]:
        gates, columns = len(product.gates), self._kind.columns(product.name)
        call = f"edgernn_{self._kind.weights}_products_{gates}"
        yield f"{call}(layer->{product.field} + j * {gates} * {columns}, {self._vector(product.name)}, {columns},"
        yield f"    {', '.join(f'&p[{gate}]' for gate in product.gates)});"

    def _add_sums(self, product: GateProduct) -> Iterator[str]:
        """Generate the additions of whole-number sums of neuron j, times their scales, to p."""
        name, gates = product.name, len(product.gates)
        row = f"layer->{product.field} + {gates} * j * quantised_{name}.columns"
        yield f"int32_t sums_{name}[{gates}];"
        yield f"edgernn_int8_sums_{gates}({row}, &quantised_{name}, sums_{name});"
        for k, gate in enumerate(product.gates):
            place = f"sums_{name} + {k}, layer->{product.field}_scales + {gates} * j + {k}"
            yield f"p[{gate}] = edgernn_add_sum(p[{gate}], {place}, &quantised_{name});"

    def _gate(self, gate: int) -> str:
        kind, mid = self._kind, gate in self._cell.group(mid=True)
        if not kind.blocked:
            return f"p[{gate}]"
        products = [product for product in kind.products if gate in product.gates]
        narrow = list(filter(kind.is_narrow, products))
        array = "p" if len(products) > len(narrow) else "bias"
        place = f"{array}[{BLOCK_ROWS * kind.slots(mid=mid).index(gate)} + i]"
        lanes = kind.lanes and not mid
        expression = f"edgernn_all_lanes(&{place})" if lanes else place
        for product in narrow:
            for k in range(kind.narrow):
                row = product.gates.index(gate) * kind.narrow + k
                weight, x = f"weights_{product.name}[{BLOCK_ROWS * row} + i]", f"{self._vector(product.name)}[{k}]"
                expression = (
                    f"edgernn_lanes_add({expression}, &{weight}, {x})" if lanes else f"{expression} + {weight} * {x}"
                )
        return expression

    def _places_of(self, equation: Equation) -> dict[str, str]:
        """Map the names of the arguments of a cell's equation, such as "gate 0", to C expressions."""
        places = {}
        for argument in equation.arguments:
            what, number = argument.split()
            index = "0" if what == "vector" and self._cell.vectors[int(number)] == SIZES["1"] else "j"
            forms = {
                "gate": self._gate(int(number)),
                "x": "x[j]",
                "vector": f"layer->vector_{number}[{index}]",
                "state": f"state_{number}[j]",
            }
            places[argument] = forms[what]
        return places

    def _middle(self) -> Iterator[str]:
        assert self._cell.mid is not None
        equation = cell_equation(self._cell.mid)
        target = f"model->middle[j] = {call(f'mid_{self._id}', equation, self._places_of(equation))};"
        yield from self._neurons("layer->middle", "i", [target], mid=True)
        if "m" in quantised(self._kind):
            yield self._quantise("m")

    def _update(self) -> Iterator[str]:
        kind, equation = self._kind, cell_equation(self._cell.update)
        apart = kind.kept_apart
        waiting = {s: f"model->next[{place} * layer->hidden + i]" for place, s in enumerate(apart)}
        if apart:
            waiting[apart[0]] = "model->next[i]"
        targets = [waiting.get(s, f"state_{s}[j]") for s in range(self._cell.states)]
        places = self._places_of(equation)
        if kind.lanes:
            places = {name: self._lanes(place) for name, place in places.items()}
            names = [f"new_{s}" for s in range(len(targets))]
            result = [
                "const int32_t left = layer->hidden - j;",
                f"EdgernnLanes {', '.join(names)};",
                assign(names, f"update_{self._id}", equation, places),
                *(f"edgernn_store_lanes(&{targets[s]}, {name}, left);" for s, name in enumerate(names)),
            ]
        else:
            result = [assign(targets, f"update_{self._id}", equation, places)]
        yield from self._neurons(self._count, self._neuron, result, mid=False)
        for s, place in waiting.items():
            yield f"for (int32_t i = 0; i < {self._count}; ++i) {{"
            yield f"  state_{s}[{self._neuron}] = {place};"
            yield "}"


class _ScoredCode(_LayerCode):
    """Code for rules that update where a score is above 0."""

    def _compare(self) -> str:
        return ">=" if self._rule.inclusive else ">"

    def _advance(self, u: str, drive: str, index: str) -> Iterator[str]:
        """Generate the update of the rule's memories (its own states) by its equation `advance`."""
        equation = self._rule.equations["advance"]
        memories = self._rule.equation_memories
        places = self._rule_places(index, index) | {"u": u, "score": "score", "drive": drive}
        targets = [f"{identifier(name)}[{index}]" for name in memories]
        yield assign(targets, f"advance_{self._id}", equation, places)

    def _evidence(self) -> str:
        """Return a C call of the equation `evidence`; it reads the cell's second state, or h if there is none."""
        read = drive_state(self._kind)
        places = self._rule_places("j", "j") | {"s_h": f"state_{read}[j]", "s_c": f"state_{read}[j]"}
        return call(f"evidence_{self._id}", self._rule.equations["evidence"], places)


class _SampleCode(_ScoredCode):
    """Code for rules with one decision for all neurons: a step returns early if none is to be updated."""

    def _rule_functions(self) -> Iterator[str]:
        if self._rule.has_drive:
            yield self._drive()

    @property
    def _input(self) -> str:  # type: ignore[override]
        return "now" if self._rule.pool else "x"

    def _decide(self) -> Iterator[str]:
        score = call(f"score_{self._id}", self._rule.equations["score"], self._rule_places("0", "0"))
        yield f"const float score = {score};"
        yield f"if (!(score {self._compare()} 0.0f)) {{"
        yield from (f"  {line}" for line in self._advance("0.0f", "*drive", "0"))
        if self._cell.reads_last:
            yield "  for (int32_t k = 0; k < layer->inputs; ++k) last[k] = x[k];"
        if self._rule.pool:
            yield f"  for (int32_t k = 0; {self._pools} && k < layer->inputs; ++k) {self._unread}[k] += x[k];"
        yield "  return 0;"
        yield "}"
        if self._rule.pool:
            pool, unread = f"layer->{identifier(self._rule.pool)}[0]", self._unread
            if self._cell.reads_last:
                yield "const float* const now = x;"
            yield f"if ({self._pools}) {{"
            yield f"  for (int32_t k = 0; k < layer->inputs; ++k) {unread}[k] = ({unread}[k] + x[k]) / {pool};"
            yield f"  x = {unread};"
            yield "}"

    @property
    def _pools(self) -> str:
        """C condition under which the cell reads a mean of inputs (`RuleTable.pool`)."""
        return f"layer->{identifier(self._rule.pool)}[0] > 0.0f"

    @property
    def _unread(self) -> str:
        """Name of the C array with the sum of the inputs that no update has read yet."""
        return identifier(list(self._rule.memories)[-1])

    def _remember(self) -> Iterator[str]:
        if self._rule.has_drive:
            yield f"find_drive_{self._id}(layer, state_{drive_state(self._kind)}, drive);"
        yield from self._advance("1.0f", "*drive", "0")
        if self._rule.pool:
            yield f"for (int32_t k = 0; {self._pools} && k < layer->inputs; ++k) {self._unread}[k] = 0.0f;"

    def _drive(self) -> str:
        """Generate the C function of the equation `drive` of a rule that makes one decision for all neurons."""
        places = self._rule_places("0", "0") | {"evidence": "sum"}
        return f"""\
{block_comment(f"Computes the drive of a layer of {self._kind.name}, which is constant while its state is.")}
static void find_drive_{self._id}(const struct layer_{self._id}* layer,
    const float* state_{drive_state(self._kind)}, float* drive) {{
  float sum = 0.0f;
  for (int32_t j = 0; j < layer->hidden; ++j) sum += {self._evidence()};
  *drive = {call(f"drive_{self._id}", self._rule.equations["drive"], places)};
}}
"""


class _NeuronCode(_ScoredCode):
    """Code for rules that decide for each neuron or group: a step lists the neurons to update."""

    _count, _neuron, _result = "count", "model->active[i]", "count"

    def _decide(self) -> Iterator[str]:
        kind, rule, equation = self._kind, self._rule, self._rule.equations["score"]
        groups, index = ("layer->groups", "g") if kind.groups else ("layer->hidden", "j")
        places = self._rule_places(index, index) | {"e": "e", "s_h": f"state_0[{index}]"}
        yield "int32_t count = 0;"
        yield f"for (int32_t {index} = 0; {index} < {groups}; ++{index}) {{"
        if rule.matrix is not None:
            matrix, bias = identifier(rule.matrix), "0.0f" if rule.bias is None else places[rule.bias]
            row = f"layer->{matrix} + {index} * layer->inputs"
            if kind.int8:
                product = f"layer->{matrix}_scales[{index}] * edgernn_float_product({row}, x, layer->inputs)"
                yield f"  const float e = {bias} + {product};"
            else:
                yield f"  float e = {bias};"
                yield f"  edgernn_{kind.weights}_products_1({row}, x, layer->inputs, &e);"
        if kind.groups:
            yield "  const int32_t first = g * layer->group_size, rest = layer->hidden - first;"
            yield "  const int32_t end = first + (rest < layer->group_size ? rest : layer->group_size);"
            yield "  float sum = 0.0f;"
            yield "  for (int32_t j = first; j < end; ++j) sum += state_0[j];"
            places["s_h"] = "sum / (float)(end - first)"
        yield f"  const float score = {call(f'score_{self._id}', equation, places)};"
        if kind.remembers:
            yield "  model->scores[j] = score;"
        yield f"  if (!(score {self._compare()} 0.0f)) continue;"
        if kind.groups:
            yield "  for (int32_t j = first; j < end; ++j) model->active[count++] = (uint16_t)j;"
        else:
            yield "  model->active[count++] = (uint16_t)j;"
        yield "}"

    def _work(self) -> Iterator[str]:
        yield "if (count != 0) {"
        yield from (f"  {line}" for line in super()._work())
        yield "}"

    def _remember(self) -> Iterator[str]:
        if not self._kind.remembers:
            return
        places = self._rule_places("j", "j") | {"evidence": self._evidence()}
        drive = call(f"drive_{self._id}", self._rule.equations["drive"], places)
        yield "for (int32_t j = 0; j < layer->hidden; ++j) {"
        yield f"  const float drive = {drive}, score = model->scores[j];"
        yield f"  const float u = score {self._compare()} 0.0f ? 1.0f : 0.0f;"
        yield from (f"  {line}" for line in self._advance("u", "drive", "j"))
        yield "}"


class _ColumnCode(_LayerCode):
    """Code for rules that keep the sums W x + R h + b, and correct them for each value that changed enough."""

    _result, _counted = "count", "values of h that it sends"

    def _decide(self) -> Iterator[str]:
        yield from send_values(self._kind)


_CODE = {"TIME": _LayerCode, "SAMPLE": _SampleCode, "NEURON": _NeuronCode, "COLUMN": _ColumnCode}
