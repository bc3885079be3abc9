# SPDX-License-Identifier: Apache-2.0
"""Generator of a layer's forward Triton kernel."""

from edgernn.cells.base import Gate
from edgernn.kernels.layer_spec import SENT_H, Product, Rule
from edgernn.kernels.pointwise import Pointwise
from edgernn.kernels.rule import largest
from edgernn.kernels.writer import KernelSource, padded


class ForwardSource(KernelSource):
    """Generator of the kernel `forward`, which computes the states after each step."""

    name = "forward"
    flags = ("KEEP",)

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.spec.forward_inputs, *self.spec.outputs)

    def body(self) -> None:
        spec = self.spec
        self.before_steps(list(self._vectors()))
        self.hold()
        if self.resident:
            for state in spec.states:
                self.load(f"s_{state}", "H", f"s_{state}", "row")
            for name in spec.neuron_memory:
                self.load(name, "H", f"all_{name}", "row")
            if spec.threshold:
                self.load(SENT_H, "H", SENT_H, "row")
        for name in spec.sample_memory:
            self.put(f"{name} = tl.load(all_{name}_ptr + row, live, 0.0)")
        if spec.threshold:
            self.put(f"{spec.threshold} = tl.load({spec.threshold}_ptr)")
        with self.block("for t in range(T):"):
            self.put("at = tl.cast(t, tl.int64) * B + row")
            if spec.rule:
                spec.rule.begin_step(self)
            if spec.threshold:
                with self.stage("H"):
                    self._send()
                self.barrier()
            if spec.mid is not None:
                with self.stage("M"):
                    self._preactivations(spec.mid, "M", self.states_of(spec.mid))
                    self.put(f"m = tl.where(m_mask, mid({self.arguments(spec.mid)}), 0.0)")
                    self.store("m", "M", "m")
                self.barrier()
            if spec.rule and spec.selects and not self.resident:
                self._select_in_memory(spec.rule)
            with self.stage("H"):
                self._preactivations(spec.update, "H", list(spec.states))
                self._update()
            self.barrier()
            if self.resident and self.loads_groups:
                # the next step loads the states of whole groups
                self.put("tl.debug_barrier()")
            if spec.rule:
                spec.rule.end_step(self)

    def _send(self) -> None:
        """Append code that computes the values that products read at a step in place of the state h."""
        state = f"s_{self.spec.states[0]}"
        if not self.resident:
            self.load(state, "H", state)
            self.load(SENT_H, "H", SENT_H)
        self.put(f"{SENT_H} = value_to_send({state}, {SENT_H}, {self.spec.threshold})")
        self.store(SENT_H, "H", SENT_H, "(at + B)")

    def _select_in_memory(self, rule: Rule) -> None:
        """Append code that computes the update mask u of a rule of the kind GATE, and stores it."""
        gate = next(gate for gate in self.spec.gates if gate.name == rule.gate)
        with self.stage("H"):
            self._load_terms([gate], "H")
            self._sum_terms(gate, "H")
            self.store(f"g_{gate.name}", "H", "scores", "row")
        self.barrier()
        self.put(f"all_col = tl.arange(0, {padded(self.spec.H)})[None, :]", "all_mask = live & (all_col < H)")
        self.put("scores = tl.load(scores_ptr + row * H + all_col, all_mask, 0.0)")
        self.put(f"tl.store(u_ptr + at * H + all_col, {largest(rule, 'scores', 'all_mask')}, all_mask)")
        self.barrier()

    def tile(self, product: Product) -> str:
        k, n = product.columns, product.rows
        return f"weights({self.weights_at(product)}, {k.lower()}_k, {n.lower()}_col, {k}, {n}, 1, {k})"

    def _preactivations(self, part: Pointwise, size: str, states: list[str]) -> None:
        spec, gates = self.spec, self.gates_of(part)
        selected = spec.rule.gate if spec.rule and part is spec.update and not self.resident else ""
        summed = [gate for gate in gates if gate.name != selected]
        # first issue the loads that do not depend on the previous step
        self._load_terms(summed, size)
        if "x" in part.arguments:
            self.load(f"x_{size.lower()}", size, "x", width=str(spec.X))
        vectors = self.needed(part)
        if part is spec.update:
            for name in ("e", "blend"):
                if name in spec.inputs:
                    self.load(name, spec.decision_size if name == "e" else "H", name)
            vectors += self.rule_vectors()
        self.vectors(vectors, size)
        if not self.resident:
            for state in states:
                self.load(f"s_{state}", size, f"s_{state}", width="H")
            for name in spec.neuron_memory if part is spec.update else ():
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
                self.store(f"g_{gate.name}", size, "p", width=str(spec.P), offset=spec.offsets[gate.name])

    def _load_terms(self, gates: list[Gate], size: str) -> None:
        """Append code that loads the terms of pre-activations that are not products: W x + b, or the bias alone."""
        spec = self.spec
        for gate in gates:
            if gate.x:
                self.load(f"a_{gate.name}", size, "a", width=str(spec.A), offset=spec.offsets[gate.name])
        self.vectors([f"b_{gate.name}" for gate in gates if spec.bias(gate) is not None], size)

    def _sum_terms(self, gate: Gate, size: str) -> None:
        """Append code that computes a gate's pre-activation g_NAME from the loaded terms and the products."""
        name = f"g_{gate.name}"
        terms = ([f"a_{gate.name}"] if gate.x else []) + ([f"b_{gate.name}"] if self.spec.bias(gate) else [])
        products = [p for p in self.spec.products if p.gate == gate.name]
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
        spec = self.spec
        new_states = ", ".join(f"n_{state}" for state in spec.states)
        self.put(f"{new_states} = update({self.arguments(spec.update)})")
        if spec.rule:
            spec.rule.select(self)
        for state in spec.states:
            new, old = f"n_{state}", f"s_{state}"
            if spec.rule:
                self.put(f"{new} = {spec.rule.blend(new, old)}")
            self.put(f"{new} = tl.where(h_mask, {new}, 0.0)")
            self.store(new, "H", old, "(at + B)")
            if self.resident:
                self.put(f"{old} = {new}")
        if spec.rule:
            spec.rule.remember(self)
