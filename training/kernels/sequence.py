# SPDX-License-Identifier: Apache-2.0
"""Generator of a layer's two Triton kernels, which run a whole sequence forward or backward in one launch.

A program instance processes ROWS rows of the batch over all T steps, without synchronisation between instances. Kernels
have one of two forms:

- resident: states stay in registers, and a tile has all columns. The weights of the first `held` matrix products are
  read once, before the first step, and stay in shared memory. Those of the other products are read at every step.
- streamed: tiles have BLOCK columns. States pass through memory, and weights are read from the L2 cache in blocks.

Products outside the recurrence are not part of the kernels: W x + b of all steps is an input, and the gradients of all
pre-activations are an output. Matrix products convert their left factor to the type of the weights, and sum in float32.
If the weights are float32, the constant PRECISION says how they are multiplied: as "tf32", or "ieee" for full float32.
"""

from edgernn.rules import Kind
from edgernn.training.kernels.layout import Layout, Product, Rule
from edgernn.training.kernels.pointwise import Pointwise
from edgernn.training.kernels.rule import RuleGradients
from edgernn.training.kernels.writer import HEADER, KernelSource


def source(layout: Layout, resident: bool, held: int) -> str:
    """Generate the source of a Python module with the Triton kernels `forward` and `backward` of a layer.

    Args:
        layout: Description of the layer.
        resident: True for the resident form (states in registers), false for the streamed one (states in memory).
        held: In the resident form, number of matrix products whose weights are loaded once, before the first step.

    Returns:
        Python source with Triton functions.
    """
    maps = [part for part in (layout.mid, layout.update) if part is not None]
    parts = "".join(part.text for part in (*maps, *(layout.rule.maps if layout.rule else ())))
    return HEADER + parts + _Forward(layout, resident, held).text() + _Backward(layout, resident, held).text()


class _Forward(KernelSource):
    name = "forward"
    flags = ("KEEP",)

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        starts = {f"s_{name}" for name in self.layout.states} | {*self.layout.memory}
        return (*(name for name in self.layout.inputs if name not in starts), *self.layout.outputs)

    def body(self) -> None:
        layout = self.layout
        self.before_steps(list(self._vectors()))
        self.hold()
        if self.resident:
            for state in layout.states:
                self.load(f"s_{state}", "H", f"s_{state}", "row")
            for name in layout.neuron_memory:
                self.load(name, "H", f"all_{name}", "row")
        for name in layout.sample_memory:
            self.put(f"{name} = tl.load(all_{name}_ptr + row, live, 0.0)")
        with self.block("for t in range(T):"):
            self.put("at = tl.cast(t, tl.int64) * B + row")
            if layout.rule and layout.rule.kind is Kind.SAMPLE:
                self.decide(layout.rule)
                self.put("evidence = tl.zeros((ROWS, 1), tl.float32)")
            if layout.mid is not None:
                with self.stage("M"):
                    self._preactivations(layout.mid, "M", self.states_of(layout.mid))
                    self.put(f"m = tl.where(m_mask, mid({self.arguments(layout.mid)}), 0.0)")
                    self.store("m", "M", "m")
                self.barrier()
            with self.stage("H"):
                self._preactivations(layout.update, "H", list(layout.states))
                self._update()
            self.barrier()
            if self.resident and self.loads_groups:
                # the next step loads the states of whole groups
                self.put("tl.debug_barrier()")
            if layout.rule and layout.rule.kind is Kind.SAMPLE:
                self.put("tl.store(evidence_ptr + at, evidence, live)")
                self._advance(layout.rule)
                for name in layout.memory:
                    self.put(f"tl.store(all_{name}_ptr + at + B, {name}, live)")

    def _advance(self, rule: Rule) -> None:
        """Append the code that computes the update rule's own states (its memory) after a step."""
        self.put(
            f"drive = rule_drive({', '.join(rule.map('drive').arguments)})",
            "u = tl.where(u, 1.0, 0.0)",
            f"{', '.join(rule.memory)} = rule_advance({', '.join(rule.map('advance').arguments)})",
        )

    def tile(self, product: Product) -> str:
        k, n = product.columns, product.rows
        return f"weights({self.weights_at(product)}, {k.lower()}_k, {n.lower()}_col, {k}, {n}, 1, {k})"

    def _preactivations(self, part: Pointwise, size: str, states: list[str]) -> None:
        layout, gates = self.layout, self.gates_of(part)
        # first issue the loads that do not depend on the previous step
        for gate in gates:
            if gate.x:
                self.load(f"a_{gate.name}", size, "a", width=str(layout.A), offset=layout.offsets[gate.name])
        if "x" in part.arguments:
            self.load(f"x_{size.lower()}", size, "x", width=str(layout.X))
        biases = [f"b_{gate.name}" for gate in gates if layout.bias(gate) is not None]
        if part is layout.update:
            for name in ("e", "blend"):
                if name in layout.inputs:
                    self.load(name, layout.decision_size if name == "e" else "H", name)
            biases += self.rule_vectors()
        self.vectors(self.needed(part) + biases, size)
        if not self.resident:
            for state in states:
                self.load(f"s_{state}", size, f"s_{state}", width="H")
            for name in layout.neuron_memory if part is layout.update else ():
                self.load(name, size, f"all_{name}")
        for gate in gates:
            name = f"g_{gate.name}"
            terms = ([f"a_{gate.name}"] if gate.x else []) + ([f"b_{gate.name}"] if layout.bias(gate) else [])
            products = [p for p in layout.products if p.gate == gate.name]
            if products:
                width = f"{size}P" if self.resident else "BLOCK"
                self.put(f"{name} = tl.zeros((ROWS, {width}), tl.float32)")
                for product in products:
                    self._term(name, product, size)
                terms.insert(0, name)
            self.put(f"{name} = {' + '.join(terms) or '0.0'}")
        if gates:
            self.put("if KEEP:")
        for gate in gates:
            with self.indented():
                self.store(f"g_{gate.name}", size, "p", width=str(layout.P), offset=layout.offsets[gate.name])

    def _term(self, name: str, product: Product, size: str) -> None:
        if self.resident:
            self.multiply(name, product.factor, product)
            return
        k = product.columns
        self.put(
            f"{name} = stream({name}, {product.factor}_ptr + at * {k}, live, {self.weights_at(product)}, "
            f"{size.lower()}_col, {k}, {size}, 1, {k}, BLOCK_K, PRECISION)"
        )

    def _update(self) -> None:
        layout = self.layout
        new_states = ", ".join(f"n_{state}" for state in layout.states)
        self.put(f"{new_states} = update({self.arguments(layout.update)})")
        if layout.rule and layout.rule.kind is Kind.NEURON:
            self.decide(layout.rule)
        for state in layout.states:
            new, old = f"n_{state}", f"s_{state}"
            if layout.rule and layout.rule.kind is Kind.TIME:
                self.put(f"{new} = lerp({old}, {new}, blend)")
            elif layout.rule:
                self.put(f"{new} = tl.where(u, {new}, {old})")
            self.put(f"{new} = tl.where(h_mask, {new}, 0.0)")
            self.store(new, "H", old, "(at + B)")
            if self.resident:
                self.put(f"{old} = {new}")
        if not layout.memory:
            return
        assert layout.rule is not None
        values = ", ".join(f"n_{a[2:]}" if a.startswith("s_") else a for a in layout.rule.map("evidence").arguments)
        if layout.rule.kind is Kind.SAMPLE:
            self.put(f"evidence += tl.sum(tl.where(h_mask, rule_evidence({values}), 0.0), 1, keep_dims=True)")
            return
        self.put(f"evidence = rule_evidence({values})")
        self._advance(layout.rule)
        for name in layout.neuron_memory:
            self.put(f"{name} = tl.where(h_mask, {name}, 0.0)")
            self.store(name, "H", f"all_{name}", "(at + B)")


class _Backward(RuleGradients):
    name = "backward"

    @property
    def flags(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"HAS_{name}" for name in self.layout.output_grads)

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        layout = self.layout
        skipped = ("a", *layout.memory, *layout.biases, *(f"s_{name}" for name in layout.states))
        read = [name for name in layout.inputs if name not in skipped]
        outputs = [name for name in layout.outputs if name != "m"]
        return (*read, *outputs, *(f"y_{name}" for name in layout.output_grads), *layout.gradients)

    def body(self) -> None:
        layout = self.layout
        self.before_steps([name for name in self._vectors() if not name.startswith("b_")])
        self.hold()
        if self.resident:
            for state in layout.states:
                self.load(f"d_{state}", "H", f"d_s_{state}", "row")
            for name in layout.neuron_memory:
                self.load(f"to_{name}", "H", f"d_{name}", "row")
            for name, (_, size) in layout.sums.items():
                if size != "1":
                    self.put(f"sum_{name} = tl.zeros((ROWS, {self.width(size)}), tl.float32)")
        numbers = [f"to_{name}" for name in layout.sample_memory]
        numbers += [f"sum_{name}" for name, (_, size) in layout.sums.items() if size == "1"]
        self.put(*(f"{name} = tl.zeros((ROWS, 1), tl.float32)" for name in numbers))
        self.put("at = tl.cast(T - 1, tl.int64) * B + row")
        if self.resident:
            self._read_all()
        with self.block("for step in range(T):"):
            if layout.rule and layout.rule.kind is Kind.SAMPLE:
                self.memory_grads(layout.rule)
            if self.loads_groups and not self.resident:
                with self.stage("H"):
                    self._store_grad_of_u()
                self.barrier()
            with self.stage("H"):
                self._update()
            self.barrier()
            if layout.rule and layout.rule.kind is Kind.SAMPLE:
                self.decision_grads(layout.rule, "to_u")
            if layout.mid is not None:
                with self.stage("M"):
                    self._mid(layout.mid)
                self.barrier()
            if self.resident:
                self._add_output_grads()
                # prefetch the values of the previous step during this step's products
                self.put("at = tl.maximum(at - B, row)")
                self._read_all()
            with self.stage("H"):
                self._through_states()
            self.barrier()
            if not self.resident:
                self.put("at -= B")
        if self.resident:
            for state in layout.states:
                self.store(f"d_{state}", "H", f"d_s_{state}", "row")
            for name in layout.neuron_memory:
                self.store(f"to_{name}", "H", f"d_{name}", "row")
            for name, (_, size) in layout.sums.items():
                if size != "1":
                    self.store(f"sum_{name}", size, f"sum_{name}", "row")
        for name in layout.sample_memory:
            self.put(f"if HAS_all_{name}:", f"    to_{name} += tl.load(y_all_{name}_ptr + row, live, 0.0)")
            self.put(f"tl.store(d_{name}_ptr + row, to_{name}, live)")
        for name, (_, size) in layout.sums.items():
            if size == "1":
                self.put(f"tl.store(sum_{name}_ptr + row, sum_{name}, live)")

    def tile(self, product: Product) -> str:
        k, n = product.rows, product.columns
        return f"weights({self.weights_at(product)}, {k.lower()}_k, {n.lower()}_col, {k}, {n}, {n}, 1)"

    def _read(self, part: Pointwise, size: str) -> None:
        """Append code that loads values that the derivative of `part` reads. `size`: "M" for `Cell.mid`, else "H"."""
        layout = self.layout
        for gate in self.gates_of(part):
            if gate.name in part.arguments:
                self.load(f"g_{gate.name}", size, "p", width=str(layout.P), offset=layout.offsets[gate.name])
        if "x" in part.arguments:
            self.load(f"x_{size.lower()}", size, "x", width=str(layout.X))
        if part is layout.mid and self.resident:
            # the update stage has read all states
            return
        whole = part is layout.update and (layout.rule is not None or (layout.mid is not None and self.resident))
        for state in layout.states if whole else self.states_of(part):
            self.load(f"s_{state}", size, f"s_{state}", width="H")
        if part is layout.update:
            for name in ("e", "blend"):
                if name in layout.inputs:
                    self.load(name, layout.decision_size if name == "e" else "H", name)
            for state in layout.rule.evidence_states if layout.rule else ():
                self.load(f"after_{state}", "H", f"s_{state}", "(at + B)")

    def _read_all(self) -> None:
        if self.layout.memory:
            self.read_memory()
        self._read(self.layout.update, "H")
        if self.layout.mid is not None:
            self._read(self.layout.mid, "M")
        for state in self.layout.states:
            with self.block(f"if HAS_s_{state}:"):
                self.load(f"y_{state}", "H", f"y_s_{state}")
        for name in self.layout.neuron_memory:
            with self.block(f"if HAS_all_{name}:"):
                self.load(f"y_{name}", "H", f"y_all_{name}")

    def _add_output_grads(self) -> None:
        for state in self.layout.states:
            self.put(f"if HAS_s_{state}:", f"    d_{state} += y_{state}")
        for name in self.layout.neuron_memory:
            self.put(f"if HAS_all_{name}:", f"    to_{name} += y_{name}")

    def _update(self) -> None:
        layout, states = self.layout, self.layout.states
        if not self.resident:
            self._read(layout.update, "H")
        self.vectors([*self.needed(layout.update), *self.rule_vectors()], "H")
        if not self.resident:
            for state in states:
                self.load(f"d_{state}", "H", f"d_s_{state}", "row")
            for name in layout.neuron_memory:
                self.load(f"to_{name}", "H", f"d_{name}", "row")
        if layout.rule and layout.memory:
            if layout.rule.kind is Kind.NEURON:
                self.memory_grads(layout.rule)
            self.evidence_grads(layout.rule)
        self.rule_grads()
        grads = ", ".join(f"dn_{state}" for state in states)
        self._back(layout.update, "H", grads)
        if not self.resident:
            for state in states:
                self.store(f"d_{state}", "H", f"d_s_{state}", "row")
            for name in layout.neuron_memory:
                with self.block(f"if HAS_all_{name}:"):
                    self.load("grad", "H", f"y_all_{name}")
                    self.put(f"to_{name} += grad")
                self.store(f"to_{name}", "H", f"d_{name}", "row")

    def _store_grad_of_u(self) -> None:
        """Append code that stores the gradient of the update mask in memory, to be summed over groups of neurons later.

        A group may be in two column blocks, so that the sum needs the gradients of both.
        """
        self._read(self.layout.update, "H")
        self.vectors(self.needed(self.layout.update), "H")
        for state in self.layout.states:
            self.load(f"d_{state}", "H", f"d_s_{state}", "row")
        self.grad_of_u()
        self.store("by_u", "H", "d_u", "row")

    def _back(self, part: Pointwise, size: str, grads: str) -> None:
        """Append code that propagates gradients from a point-wise function's results (width `size`) to its arguments.

        `grads` names the variables with the gradients of the results, separated by commas. Gradients of pre-activations
        and of x are stored in memory, those of parameter vectors are added to sum_NAME, those of states to d_STATE.
        """
        layout, low = self.layout, size.lower()
        gates = {gate.name for gate in self.gates_of(part)}
        sizes = dict(layout.vectors)
        names = {}
        for argument in part.arguments:
            names[argument] = (
                f"dg_{argument}" if argument in gates else f"dx_{low}" if argument == "x" else f"grad_{argument}"
            )
        self.put(f"{', '.join(names.values())} = {part.name}_back({grads}, {self.arguments(part)})")
        for argument, name in names.items():
            if argument in sizes:
                self.add(f"{part.name}_{argument}", name, size)
            elif argument.startswith("s_") and argument not in gates:
                self.put(f"d_{argument[2:]} += {name}")
        for gate in self.gates_of(part):
            if gate.name not in part.arguments:
                self.put(f"dg_{gate.name} = tl.zeros((ROWS, {f'{size}P' if self.resident else 'BLOCK'}), tl.float32)")
            self.store(f"dg_{gate.name}", size, "d_p", width=str(layout.P), offset=layout.offsets[gate.name])
        if "x" in part.arguments:
            if part is layout.mid and "x" in layout.update.arguments:
                # x is read by both stages, so that M equals H
                if self.resident:
                    self.put("dx_m += dx_h")
                else:
                    self.load("dx_h", size, "d_x", width=str(layout.X))
                    self.put("dx_m += dx_h")
            self.store(f"dx_{low}", size, "d_x", width=str(layout.X))

    def _mid(self, part: Pointwise) -> None:
        self.vectors(self.needed(part), "M")
        if not self.resident:
            self._read(part, "M")
            for state in self.states_of(part):
                self.load(f"d_{state}", "M", f"d_s_{state}", "row")
        self.put(f"to_m = tl.zeros((ROWS, {'MP' if self.resident else 'BLOCK'}), tl.float32)")
        self._terms("to_m", "V", "M")
        self._back(part, "M", "to_m")
        if not self.resident:
            for state in self.states_of(part):
                self.store(f"d_{state}", "M", f"d_s_{state}", "row")

    def _through_states(self) -> None:
        layout = self.layout
        for i, state in enumerate(layout.states):
            if not self.resident:
                self.load(f"d_{state}", "H", f"d_s_{state}", "row")
            if i < 2:
                self._terms(f"d_{state}", "RC"[i], "H")
            if not self.resident:
                with self.block(f"if HAS_s_{state}:"):
                    self.load("grad", "H", f"y_s_{state}")
                    self.put(f"d_{state} += grad")
                self.store(f"d_{state}", "H", f"d_s_{state}", "row")

    def _terms(self, total: str, key: str, size: str) -> None:
        layout = self.layout
        for product in layout.products:
            if product.key != key:
                continue
            if self.resident:
                self.multiply(total, f"dg_{product.gate}", product)
                continue
            k, n = product.rows, product.columns
            self.put(
                f"{total} = stream({total}, d_p_ptr + at * {layout.P} + {layout.offsets[product.gate]}, live, "
                f"{self.weights_at(product)}, {size.lower()}_col, {k}, {n}, {n}, 1, BLOCK_K, PRECISION)"
            )
