# SPDX-License-Identifier: Apache-2.0
"""Generator of a layer's backward Triton kernel."""

from edgernn.kernels.layer_spec import SENT_H, Product
from edgernn.kernels.pointwise import Pointwise
from edgernn.kernels.writer import KernelSource


class BackwardSource(KernelSource):
    """Generator of the kernel `backward`, which computes gradients from the last step to the first."""

    name = "backward"

    @property
    def flags(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"HAS_{name}" for name in self.spec.output_grads)

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        spec = self.spec
        return (*spec.backward_inputs, *(f"y_{name}" for name in spec.output_grads), *spec.gradients)

    def body(self) -> None:
        spec = self.spec
        self.before_steps([name for name in self._vectors() if not name.startswith("b_")])
        self.hold()
        if self.resident:
            for state in spec.states:
                self.load(f"d_{state}", "H", f"d_s_{state}", "row")
            for name in spec.neuron_memory:
                self.load(f"to_{name}", "H", f"d_{name}", "row")
            if not spec.straight_through:
                self.put(f"d_{SENT_H} = tl.zeros((ROWS, HP), tl.float32)")
            for name, (_, size) in spec.sums.items():
                if size != "1":
                    self.put(f"sum_{name} = tl.zeros((ROWS, {self.width(size)}), tl.float32)")
        numbers = [f"to_{name}" for name in spec.sample_memory]
        numbers += [f"sum_{name}" for name, (_, size) in spec.sums.items() if size == "1"]
        self.put(*(f"{name} = tl.zeros((ROWS, 1), tl.float32)" for name in numbers))
        self.put("at = tl.cast(T - 1, tl.int64) * B + row")
        if self.resident:
            self._read_all()
        with self.block("for step in range(T):"):
            if self.resident and not spec.straight_through:
                self.put("keeps = keeps_earlier")
            if spec.rule:
                spec.rule.begin_step_back(self)
            if self.loads_groups and not self.resident:
                with self.stage("H"):
                    self._store_grad_of_u()
                self.barrier()
            with self.stage("H"):
                self._update()
            self.barrier()
            if spec.rule:
                spec.rule.end_step_back(self)
            if spec.mid is not None:
                with self.stage("M"):
                    self._mid(spec.mid)
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
            for state in spec.states:
                self.store(f"d_{state}", "H", f"d_s_{state}", "row")
            for name in spec.neuron_memory:
                self.store(f"to_{name}", "H", f"d_{name}", "row")
            if not spec.straight_through:
                self.store(f"d_{SENT_H}", "H", f"d_{SENT_H}", "row")
            for name, (_, size) in spec.sums.items():
                if size != "1":
                    self.store(f"sum_{name}", size, f"sum_{name}", "row")
        for name in spec.sample_memory:
            self.put(f"if HAS_all_{name}:", f"    to_{name} += tl.load(y_all_{name}_ptr + row, live, 0.0)")
            self.put(f"tl.store(d_{name}_ptr + row, to_{name}, live)")
        for name, (_, size) in spec.sums.items():
            if size == "1":
                self.put(f"tl.store(sum_{name}_ptr + row, sum_{name}, live)")

    def tile(self, product: Product) -> str:
        k, n = product.rows, product.columns
        return f"weights({self.weights_at(product)}, {k.lower()}_k, {n.lower()}_col, {k}, {n}, {n}, 1)"

    def _read(self, part: Pointwise, size: str) -> None:
        """Append code that loads values that the derivative of `part` reads. `size`: "M" for `Cell.mid`, else "H"."""
        spec = self.spec
        for gate in self.gates_of(part):
            if gate.name in part.arguments:
                self.load(f"g_{gate.name}", size, "p", width=str(spec.P), offset=spec.offsets[gate.name])
        if "x" in part.arguments:
            self.load(f"x_{size.lower()}", size, "x", width=str(spec.X))
        if part is spec.mid and self.resident:
            # the update stage has read all states
            return
        has_grad = spec.rule is not None and not spec.selects
        whole = part is spec.update and (has_grad or (spec.mid is not None and self.resident))
        for state in spec.states if whole else self.states_of(part):
            self.load(f"s_{state}", size, f"s_{state}", width="H")
        if part is spec.update:
            for name in ("e", "blend"):
                if name in spec.inputs:
                    self.load(name, spec.decision_size if name == "e" else "H", name)
            if spec.selects:
                self.load("u", "H", "u")
            for state in spec.rule.evidence_states if spec.rule else ():
                self.load(f"after_{state}", "H", f"s_{state}", "(at + B)")

    def _read_all(self) -> None:
        if self.spec.memory:
            self.read_memory()
        self._read(self.spec.update, "H")
        if self.spec.mid is not None:
            self._read(self.spec.mid, "M")
        if not self.spec.straight_through:
            self._read_kept("keeps_earlier")
        for state in self.spec.states:
            with self.block(f"if HAS_s_{state}:"):
                self.load(f"y_{state}", "H", f"y_s_{state}")
        for name in self.spec.neuron_memory:
            with self.block(f"if HAS_all_{name}:"):
                self.load(f"y_{name}", "H", f"y_all_{name}")

    def _read_kept(self, name: str) -> None:
        """Append code that computes the mask `name`, True where products read the value of the step before."""
        self.load("sent", "H", SENT_H, "(at + B)")
        self.load("last", "H", SENT_H)
        # a value that is sent differs from the last one
        self.put(f"{name} = sent == last")

    def _add_output_grads(self) -> None:
        for state in self.spec.states:
            self.put(f"if HAS_s_{state}:", f"    d_{state} += y_{state}")
        for name in self.spec.neuron_memory:
            self.put(f"if HAS_all_{name}:", f"    to_{name} += y_{name}")

    def _update(self) -> None:
        spec, states = self.spec, self.spec.states
        if not self.resident:
            self._read(spec.update, "H")
        self.vectors([*self.needed(spec.update), *self.rule_vectors()], "H")
        if not self.resident:
            for state in states:
                self.load(f"d_{state}", "H", f"d_s_{state}", "row")
            for name in spec.neuron_memory:
                self.load(f"to_{name}", "H", f"d_{name}", "row")
        if spec.rule:
            spec.rule.remember_back(self)
            spec.rule.blend_back(self)
        else:
            for state in states:
                self.put(f"dn_{state} = d_{state}", f"d_{state} = tl.zeros_like(d_{state})")
        grads = ", ".join(f"dn_{state}" for state in states)
        self._back(spec.update, "H", grads)
        if not self.resident:
            for state in states:
                self.store(f"d_{state}", "H", f"d_s_{state}", "row")
            for name in spec.neuron_memory:
                with self.block(f"if HAS_all_{name}:"):
                    self.load("grad", "H", f"y_all_{name}")
                    self.put(f"to_{name} += grad")
                self.store(f"to_{name}", "H", f"d_{name}", "row")

    def _store_grad_of_u(self) -> None:
        """Append code that stores the gradient of the update mask in memory, to be summed over groups of neurons."""
        self._read(self.spec.update, "H")
        self.vectors(self.needed(self.spec.update), "H")
        for state in self.spec.states:
            self.load(f"d_{state}", "H", f"d_s_{state}", "row")
        self.grad_of_u()
        self.store("by_u", "H", "d_u", "row")

    def _back(self, part: Pointwise, size: str, grads: str) -> None:
        """Append code that propagates gradients from a point-wise function's results (width `size`) to arguments."""
        spec, low = self.spec, size.lower()
        gates = {gate.name for gate in self.gates_of(part)}
        sizes = dict(spec.vectors)
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
            self.store(f"dg_{gate.name}", size, "d_p", width=str(spec.P), offset=spec.offsets[gate.name])
        if "x" in part.arguments:
            if part is spec.mid and "x" in spec.update.arguments:
                # x is read by both stages, so that M equals H
                if self.resident:
                    self.put("dx_m += dx_h")
                else:
                    self.load("dx_h", size, "d_x", width=str(spec.X))
                    self.put("dx_m += dx_h")
            self.store(f"dx_{low}", size, "d_x", width=str(spec.X))

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
        spec = self.spec
        for i, state in enumerate(spec.states):
            if not self.resident:
                self.load(f"d_{state}", "H", f"d_s_{state}", "row")
            if i == 0 and not spec.straight_through:
                self._through_kept_values(state)
            elif i < 2:
                self._terms(f"d_{state}", "RC"[i], "H")
            if not self.resident:
                with self.block(f"if HAS_s_{state}:"):
                    self.load("grad", "H", f"y_s_{state}")
                    self.put(f"d_{state} += grad")
                self.store(f"d_{state}", "H", f"d_s_{state}", "row")

    def _through_kept_values(self, state: str) -> None:
        """Append code that propagates gradients from the products with R to `state`, where its value was sent."""
        if not self.resident:
            self._read_kept("keeps")
            self.load(f"d_{SENT_H}", "H", f"d_{SENT_H}", "row")
        self._terms(f"d_{SENT_H}", "R", "H")
        self.put(f"d_{state} += tl.where(keeps, 0.0, d_{SENT_H})", f"d_{SENT_H} = tl.where(keeps, d_{SENT_H}, 0.0)")
        if not self.resident:
            self.store(f"d_{SENT_H}", "H", f"d_{SENT_H}", "row")

    def _terms(self, total: str, key: str, size: str) -> None:
        spec = self.spec
        for product in spec.products:
            if product.key != key:
                continue
            if self.resident:
                self.multiply(total, f"dg_{product.gate}", product)
                continue
            k, n = product.rows, product.columns
            self.put(
                f"{total} = multiply_streamed({total}, d_p_ptr + at * {spec.P} + {spec.offsets[product.gate]}, "
                f"live, {self.weights_at(product)}, {size.lower()}_col, {k}, {n}, {n}, 1, BLOCK_K, PRECISION)"
            )

    def read_memory(self) -> None:
        """Append code that loads the values of the update rule's own states from before the step.

        If these states have one value per sample, the forward pass has summed the results of `Scored.evidence` over
        the neurons at each step. The code also loads this sum. If the loss reads these states directly, the code also
        loads the gradients of the loss with respect to them.
        """
        for name in self.spec.neuron_memory:
            self.load(name, "H", f"all_{name}")
        for name in self.spec.sample_memory:
            self.put(
                f"{name} = tl.load(all_{name}_ptr + at, live, 0.0)",
                f"if HAS_all_{name}:",
                f"    y_{name} = tl.load(y_all_{name}_ptr + at + B, live, 0.0)",
            )
        if self.spec.sample_memory:
            self.put("evidence = tl.load(evidence_ptr + at, live, 0.0)")

    def grad_of_u(self) -> None:
        """Compute the variable by_u, the gradient of the update mask u, from the gradients of the states."""
        states = self.spec.states
        new_states = ", ".join(f"n_{state}" for state in states)
        self.put(f"{new_states} = update({self.arguments(self.spec.update)})")
        self.put("by_u = " + " + ".join(f"d_{s} * (n_{s} - s_{s})" for s in states))

    def sum_over_groups(self) -> None:
        """Replace by_u, the gradient of the update mask u, by its sum over each group of neurons that share u."""
        if self.resident and self.loads_groups:
            self.store("by_u", "H", "d_u", "row")
            self.put("tl.debug_barrier()")
        self.put("by_u = tl.where(h_mask, by_u, 0.0)", f"by_u = {self.group_sums('by_u', 'd_u_ptr + row * H')}")
        if self.resident and self.loads_groups:
            # the next step must not overwrite it before all threads have loaded it
            self.put("tl.debug_barrier()")

    def add(self, name: str, value: str, size: str = "H") -> None:
        """Add the Triton expression `value` to the variable sum_NAME, a gradient that is summed over the steps.

        `size` is the symbol of the gradient's size. The sum is in registers if the size is "1" or the kernel has the
        resident form (states in registers), else in memory.
        """
        if self.resident or size == "1":
            self.put(f"sum_{name} += {value}")
            return
        self.load(f"sum_{name}", size, f"sum_{name}", "row")
        self.put(f"sum_{name} += {value}")
        self.store(f"sum_{name}", size, f"sum_{name}", "row")
