# SPDX-License-Identifier: Apache-2.0
"""Generator of a layer's forward Triton kernel."""

from edgernn.cells.base import Gate
from edgernn.kernels.layout import SENT_H, Product, Rule
from edgernn.kernels.pointwise import Pointwise
from edgernn.kernels.rule import largest
from edgernn.kernels.writer import KernelSource, padded


class ForwardSource(KernelSource):
    """Generator of the kernel `forward`, which computes the states after each step."""

    name = "forward"
    flags = ("KEEP",)

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.layout.forward_inputs, *self.layout.outputs)

    def body(self) -> None:
        layout = self.layout
        self.before_steps(list(self._vectors()))
        self.hold()
        if self.resident:
            for state in layout.states:
                self.load(f"s_{state}", "H", f"s_{state}", "row")
            for name in layout.neuron_memory:
                self.load(name, "H", f"all_{name}", "row")
            if layout.threshold:
                self.load(SENT_H, "H", SENT_H, "row")
        for name in layout.sample_memory:
            self.put(f"{name} = tl.load(all_{name}_ptr + row, live, 0.0)")
        if layout.threshold:
            self.put(f"{layout.threshold} = tl.load({layout.threshold}_ptr)")
        with self.block("for t in range(T):"):
            self.put("at = tl.cast(t, tl.int64) * B + row")
            if layout.rule:
                layout.rule.begin_step(self)
            if layout.threshold:
                with self.stage("H"):
                    self._send()
                self.barrier()
            if layout.mid is not None:
                with self.stage("M"):
                    self._preactivations(layout.mid, "M", self.states_of(layout.mid))
                    self.put(f"m = tl.where(m_mask, mid({self.arguments(layout.mid)}), 0.0)")
                    self.store("m", "M", "m")
                self.barrier()
            if layout.rule and layout.selects and not self.resident:
                self._select_in_memory(layout.rule)
            with self.stage("H"):
                self._preactivations(layout.update, "H", list(layout.states))
                self._update()
            self.barrier()
            if self.resident and self.loads_groups:
                # the next step loads the states of whole groups
                self.put("tl.debug_barrier()")
            if layout.rule:
                layout.rule.end_step(self)

    def _send(self) -> None:
        """Append code that computes the values that products read at a step in place of the state h."""
        state = f"s_{self.layout.states[0]}"
        if not self.resident:
            self.load(state, "H", state)
            self.load(SENT_H, "H", SENT_H)
        self.put(f"{SENT_H} = value_to_send({state}, {SENT_H}, {self.layout.threshold})")
        self.store(SENT_H, "H", SENT_H, "(at + B)")

    def _select_in_memory(self, rule: Rule) -> None:
        """Append code that computes the update mask u of a rule of the kind GATE, and stores it."""
        gate = next(gate for gate in self.layout.gates if gate.name == rule.gate)
        with self.stage("H"):
            self._load_terms([gate], "H")
            self._sum_terms(gate, "H")
            self.store(f"g_{gate.name}", "H", "scores", "row")
        self.barrier()
        self.put(f"all_col = tl.arange(0, {padded(self.layout.H)})[None, :]", "all_mask = live & (all_col < H)")
        self.put("scores = tl.load(scores_ptr + row * H + all_col, all_mask, 0.0)")
        self.put(f"tl.store(u_ptr + at * H + all_col, {largest(rule, 'scores', 'all_mask')}, all_mask)")
        self.barrier()

    def tile(self, product: Product) -> str:
        k, n = product.columns, product.rows
        return f"weights({self.weights_at(product)}, {k.lower()}_k, {n.lower()}_col, {k}, {n}, 1, {k})"

    def _preactivations(self, part: Pointwise, size: str, states: list[str]) -> None:
        layout, gates = self.layout, self.gates_of(part)
        selected = layout.rule.gate if layout.rule and part is layout.update and not self.resident else ""
        summed = [gate for gate in gates if gate.name != selected]
        # first issue the loads that do not depend on the previous step
        self._load_terms(summed, size)
        if "x" in part.arguments:
            self.load(f"x_{size.lower()}", size, "x", width=str(layout.X))
        vectors = self.needed(part)
        if part is layout.update:
            for name in ("e", "blend"):
                if name in layout.inputs:
                    self.load(name, layout.decision_size if name == "e" else "H", name)
            vectors += self.rule_vectors()
        self.vectors(vectors, size)
        if not self.resident:
            for state in states:
                self.load(f"s_{state}", size, f"s_{state}", width="H")
            for name in layout.neuron_memory if part is layout.update else ():
                self.load(name, size, f"all_{name}")
        if selected:
            self.load(f"g_{selected}", size, "scores", "row")
            self.load("u", size, "u")
        for gate in summed:
            self._sum_terms(gate, size)
        if gates:
            self.put("if KEEP:")
        for gate in gates:
            with self.indented():
                self.store(f"g_{gate.name}", size, "p", width=str(layout.P), offset=layout.offsets[gate.name])

    def _load_terms(self, gates: list[Gate], size: str) -> None:
        """Append code that loads the terms of pre-activations that are not products: W x + b, or the bias alone."""
        layout = self.layout
        for gate in gates:
            if gate.x:
                self.load(f"a_{gate.name}", size, "a", width=str(layout.A), offset=layout.offsets[gate.name])
        self.vectors([f"b_{gate.name}" for gate in gates if layout.bias(gate) is not None], size)

    def _sum_terms(self, gate: Gate, size: str) -> None:
        """Append code that computes a gate's pre-activation g_NAME from the loaded terms and the products."""
        name = f"g_{gate.name}"
        terms = ([f"a_{gate.name}"] if gate.x else []) + ([f"b_{gate.name}"] if self.layout.bias(gate) else [])
        products = [p for p in self.layout.products if p.gate == gate.name]
        if products:
            width = f"{size}P" if self.resident else "BLOCK"
            self.put(f"{name} = tl.zeros((ROWS, {width}), tl.float32)")
            for product in products:
                self._term(name, product, size)
            terms.insert(0, name)
        self.put(f"{name} = {' + '.join(terms) or '0.0'}")

    def _term(self, name: str, product: Product, size: str) -> None:
        if self.resident:
            self.multiply(name, product.factor, product)
            return
        k, at = product.columns, "(at + B)" if product.factor == SENT_H else "at"
        self.put(
            f"{name} = multiply_streamed({name}, {product.factor}_ptr + {at} * {k}, live, {self.weights_at(product)}, "
            f"{size.lower()}_col, {k}, {size}, 1, {k}, BLOCK_K, PRECISION)"
        )

    def _update(self) -> None:
        layout = self.layout
        new_states = ", ".join(f"n_{state}" for state in layout.states)
        self.put(f"{new_states} = update({self.arguments(layout.update)})")
        if layout.rule:
            layout.rule.select(self)
        for state in layout.states:
            new, old = f"n_{state}", f"s_{state}"
            if layout.rule:
                self.put(f"{new} = {layout.rule.blend(new, old)}")
            self.put(f"{new} = tl.where(h_mask, {new}, 0.0)")
            self.store(new, "H", old, "(at + B)")
            if self.resident:
                self.put(f"{old} = {new}")
        if layout.rule:
            layout.rule.remember(self)
