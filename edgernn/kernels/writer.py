# SPDX-License-Identifier: Apache-2.0
"""Base of the generator of Triton kernels: the parts that the forward and the backward kernel of a layer share."""

import abc
from collections.abc import Iterator
from contextlib import contextmanager

from edgernn.cells.base import Gate
from edgernn.kernels import pointwise
from edgernn.kernels.layer_spec import LayerSpec, Product, Rule
from edgernn.kernels.pointwise import Pointwise

HEADER = (
    """# Made by edgernn.kernels.sequence.
import triton
import triton.language as tl

"""
    + pointwise.PRELUDE
    + '''

@triton.jit
def weights(at, k, col, K: tl.constexpr, N: tl.constexpr, by_k: tl.constexpr, by_col: tl.constexpr):
    """Load a tile (k, col) of weights, zero beyond (K, N)."""
    return tl.load(at + k * by_k + col * by_col, (k < K) & (col < N), 0.0)


@triton.jit
def rounded(tile, PRECISION: tl.constexpr):
    """Round a float32 tile to the nearest tf32 values for tf32 products, as tensor cores would cut off the low bits."""
    if PRECISION == "tf32" and tile.dtype == tl.float32:
        bits = (tile.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        # the sum would turn some NaN into 0
        tile = tl.where(tile == tile, bits.to(tl.float32, bitcast=True), tile)
    return tile


@triton.jit
def multiply(total, factor, tile, PRECISION: tl.constexpr):
    """Return total + factor times tile. `tile` was made by `rounded`."""
    return tl.dot(rounded(factor.to(tile.dtype), PRECISION), tile, total, input_precision=PRECISION)


@triton.jit
def multiply_streamed(total, factor_at, live, at, col, K: tl.constexpr, N: tl.constexpr, by_k: tl.constexpr,
                      by_col: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """Return total + factor (ROWS, K) times weights (K, N), both read from memory."""
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        factor = tl.load(factor_at + k[None, :], live & (k[None, :] < K), 0.0)
        tile = rounded(weights(at, k[:, None], col, K, N, by_k, by_col), PRECISION)
        total = multiply(total, factor, tile, PRECISION)
    return total


@triton.jit
def group_sums(values, ROWS: tl.constexpr, WIDTH: tl.constexpr, G: tl.constexpr):
    """Return the sum of each G neighbouring columns, in all of these columns."""
    groups = tl.reshape(values, (ROWS, WIDTH // G, G))
    sums = tl.broadcast_to(tl.sum(groups, 2, keep_dims=True), (ROWS, WIDTH // G, G))
    return tl.reshape(sums, (ROWS, WIDTH))


@triton.jit
def load_group_sums(at, live, first, H: tl.constexpr, G: tl.constexpr):
    """Return the sums of groups of G neighbouring columns in memory, which start at the columns `first`."""
    total = tl.load(at + first, live & (first < H), 0.0)
    for k in range(1, G):
        total += tl.load(at + first + k, live & (first + k < H), 0.0)
    return total


@triton.jit
def value_to_send(value, last, theta):
    return tl.where(tl.abs(value - last) > theta, value, last)


@triton.jit
def largest(scores, mask, k):
    """Return True for the k largest scores of each row in `mask`. Of equal ones, those in lower columns are larger."""
    # integers in the order of the scores, where NaN is -inf, and columns outside the mask are below all others
    scores = tl.where(scores == scores, scores, float("-inf"))
    bits = tl.cast(tl.where(scores == 0, 0.0, scores), tl.int32, bitcast=True)
    keys = tl.where(mask, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), -0x80000000)
    # find the k-th largest key, from its highest bit to its lowest
    threshold = tl.full((scores.shape[0], 1), -0x80000000, tl.int32)
    for i in range(32):
        higher = threshold ^ (tl.full((scores.shape[0], 1), 1, tl.int32) << (31 - i))
        count = tl.sum((keys >= higher).to(tl.int32), 1, keep_dims=True)
        threshold = tl.where(count >= k, higher, threshold)
    above, equal = (keys > threshold), (keys == threshold) & mask
    places = k - tl.sum(above.to(tl.int32), 1, keep_dims=True)
    return above | (equal & (tl.cumsum(equal.to(tl.int32), 1) <= places))
'''
)


def padded(length: int) -> int:
    """Return the width of a tile for `length` columns: the next power of two, at least 16, as Triton's tl.dot needs."""
    return max(16, 1 << (length - 1).bit_length())


class KernelSource(abc.ABC):
    """Base class of generators of the source of one Triton kernel.

    Most methods append lines to the source, and their docstrings say what these lines do. Other methods return an
    expression or a name. Examples of names in the source: s_h is the state h, g_r the pre-activation of the gate r, and
    v_alpha the cell's parameter vector alpha. The prefixes d_ and to_ mark gradients of the loss: d_ with respect to a
    state of the cell, to_ with respect to a state of the update rule or an intermediate value. NAME_ptr is an address.

    Args:
        spec: Description of the layer.
        resident: True for the resident form, with states in registers; False for the streamed form, with states in
            memory (see the module `sequence`).
        held: Number of matrix products whose weights are read once, before the first step.

    Attributes:
        parameters: Names of the tensors whose addresses the kernel takes, in order.
        flags: Names of the kernel's boolean compile-time constants.
        name: Name of the kernel.
    """

    parameters: tuple[str, ...]
    flags: tuple[str, ...]
    name: str

    def __init__(self, spec: LayerSpec, resident: bool, held: int) -> None:
        self.spec, self.resident, self.held = spec, resident, held
        self._lines: list[str] = []
        self._indent = 0

    def text(self) -> str:
        pointers = ", ".join(f"{name}_ptr" for name in self.parameters)
        sizes = ", ".join(f"{name}: tl.constexpr" for name in ("H", "M", "ROWS", "BLOCK", "BLOCK_K", "PRECISION"))
        # T and B are not specialised, so that one compilation serves all shapes
        self.put("", "", '@triton.jit(do_not_specialize=["T", "B"])')
        with self.block(f"def {self.name}({pointers}, T, B, slope, {sizes}, {self._flags()}):"):
            self.put("row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]", "live = row < B")
            self.body()
        return "\n".join([*self._lines, ""])

    @abc.abstractmethod
    def body(self) -> None:
        """Append the code of the kernel."""

    def _flags(self) -> str:
        return ", ".join(f"{name}: tl.constexpr" for name in self.flags)

    def put(self, *lines: str) -> None:
        self._lines += [("    " * self._indent + line).rstrip() for line in lines]

    @contextmanager
    def indented(self) -> Iterator[None]:
        self._indent += 1
        yield
        self._indent -= 1

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        self.put(header)
        with self.indented():
            yield

    def before_steps(self, names: list[str]) -> None:
        """Append code that loads parameter vectors once, before the loop over steps.

        The code loads all vectors of length 1. In the resident form (states in registers), it first computes the
        column indices of a tile, and also loads the vectors `names`.
        """
        if self.resident:
            for size in self._sizes():
                self._columns(size, "0")
            for name in names:
                self._vector(name)
        for name, size in self.spec.vectors:
            if size == "1":
                self.put(f"v_{name} = tl.load(v_{name}_ptr)")
        for name, size in self.spec.rule.vectors if self.spec.rule else ():
            if size == "1":
                self.put(f"{name} = tl.load({name}_ptr)")

    def _sizes(self) -> list[str]:
        return ["H", "M"] if self.spec.mid else ["H"]

    @contextmanager
    def stage(self, size: str) -> Iterator[None]:
        """Enclose the code of one stage of a step, such as `Cell.update`, in a loop over blocks of columns.

        `size` is the symbol of the number of columns of the results: "H", or "M" for `Cell.mid`. The resident form
        (states in registers) has no such loop, as its tiles have all columns.
        """
        if self.resident:
            yield
            return
        with self.block(f"for first in range(0, {size}, BLOCK):"):
            self._columns(size, "first")
            yield

    def _columns(self, size: str, first: str) -> None:
        low, width = size.lower(), f"{size}P" if self.resident else "BLOCK"
        if self.resident:
            self.put(f"{width}: tl.constexpr = {padded(self.spec.length(size))}")
        self.put(f"{low}_col = {first} + tl.arange(0, {width})[None, :]", f"{low}_mask = live & ({low}_col < {size})")
        if self.resident:
            self.put(f"{low}_k = tl.arange(0, {width})[:, None]")
        if size == "H" and self.spec.group_size > 1:
            # a neuron's group, the group's first neuron, and one over the group's number of neurons
            G = self.spec.group_size
            self.put(f"u_col = h_col // {G}", f"u_first = u_col * {G}", "u_mask = h_mask & (h_col == u_first)")
            self.put(f"u_share = 1.0 / tl.maximum(tl.minimum(H - u_first, {G}), 1)")

    def _vector(self, name: str, size: str = "") -> None:
        """Load a parameter vector, which is the same for all sequences of the batch, into the variable `name`."""
        default_size, at = self._vectors()[name]
        size = default_size if default_size == "U" else size or default_size
        limit = "h_col < H" if size == "U" else f"{size.lower()}_col < {size}"
        self.put(f"{name} = tl.load({at} + {size.lower()}_col, {limit}, 0.0)")

    def _vectors(self) -> dict[str, tuple[str, str]]:
        """List the parameter vectors with more than one value: those of the cell, the biases, and those of the rule."""
        spec = self.spec
        vectors = {f"v_{name}": (size, f"v_{name}_ptr") for name, size in spec.vectors if size != "1"}
        for gate in spec.gates:
            if (bias := spec.bias(gate)) is not None:
                vectors[f"b_{gate.name}"] = (spec.size(gate), f"{bias[0]}_ptr + {bias[1]}")
        return vectors | {name: (spec.decision_size, f"{name}_ptr") for name in self.rule_vectors()}

    def rule_vectors(self) -> list[str]:
        return [name for name, size in self.spec.rule.vectors if size != "1"] if self.spec.rule else []

    def vectors(self, names: list[str], size: str) -> None:
        """Write the kernel code that loads parameter vectors, such as biases, at a step of the loop over time.

        Nothing is written for the resident form of a kernel, which keeps the vectors in registers: the code written by
        `before_steps` has loaded them.

        Args:
            names: Names of the vectors.
            size: Symbol of their number of elements, such as "H".
        """
        if not self.resident:
            for name in names:
                self._vector(name, size)

    def load(self, name: str, size: str, pointer: str, at: str = "at", width: str = "", offset: int = 0) -> None:
        # all neurons of a group load its value, and the first stores it
        mask = "h_mask" if size == "U" else f"{size.lower()}_mask"
        self.put(f"{name} = tl.load({self._place(size, pointer, at, width, offset)}, {mask}, 0.0)")

    def store(self, name: str, size: str, pointer: str, at: str = "at", width: str = "", offset: int = 0) -> None:
        self.put(f"tl.store({self._place(size, pointer, at, width, offset)}, {name}, {size.lower()}_mask)")

    def _place(self, size: str, pointer: str, at: str, width: str, offset: int) -> str:
        """Return the addresses of a tile as a Triton expression."""
        width = width or (str(self.spec.groups) if size == "U" else size)
        return f"{pointer}_ptr + {at} * {width} + {f'{offset} + ' if offset else ''}{size.lower()}_col"

    def width(self, size: str) -> str:
        """Return the name of the kernel's constant that holds the number of columns of a tile.

        `size` is the symbol of the number of columns of the whole array from which the tile is taken, such as "H".
        """
        return f"{'H' if size == 'U' else size}P" if self.resident else "BLOCK"

    def barrier(self) -> None:
        if not self.resident:
            self.put("tl.debug_barrier()")

    def arguments(self, part: Pointwise) -> str:
        """Return the arguments for a call of a point-wise Triton function: names of variables, separated by commas."""
        names = {gate.name: f"g_{gate.name}" for gate in self.spec.gates}
        names |= {name: f"v_{name}" for name, _ in self.spec.vectors}
        names["x"] = "x_m" if part is self.spec.mid else "x_h"
        return ", ".join(names.get(argument, argument) for argument in part.arguments)

    def decide(self, rule: Rule) -> None:
        """Append code that computes the rule's score (`Scored.score`) and from it the variable u, the update mask.

        u is true for the neurons, or samples, that are updated: where the score is above 0. If `rule.inclusive` is
        true, a score of 0 is enough.
        """
        limit = ">=" if rule.inclusive else ">"
        if rule.group_size > 1:
            for name in rule.map("score").arguments:
                if name.startswith("s_"):
                    self.put(f"mean_{name[2:]} = {self.group_sums(name, f'{name}_ptr + at * H')} * u_share")
        self.put(f"score = rule_score({', '.join(self.score_arguments(rule))})", f"u = score {limit} 0")

    @staticmethod
    def score_arguments(rule: Rule) -> tuple[str, ...]:
        """Return the names of the variables that the generated code passes to the function for `Scored.score`.

        If groups of neurons share a decision, the function gets the mean state of a group, such as mean_h, in place of
        the state s_h of a neuron.
        """
        arguments = rule.map("score").arguments
        if rule.group_size == 1:
            return arguments
        return tuple(f"mean_{name[2:]}" if name.startswith("s_") else name for name in arguments)

    @property
    def loads_groups(self) -> bool:
        """True if `group_sums` must read the values to sum from memory, False if it can sum them in registers."""
        G = self.spec.group_size
        return G > 1 and not (self.resident and G & (G - 1) == 0)

    def group_sums(self, tile: str, at: str) -> str:
        """Return a Triton expression that sums the columns of a tile over each group of neurons that share a decision.

        `tile` is the name of the tile's variable. `at` is a Triton expression for the address of the same rows in
        memory. The sum reads `at` if `loads_groups` is true, else `tile`.
        """
        if self.loads_groups:
            return f"load_group_sums({at}, live, u_first, H, {self.spec.group_size})"
        return f"group_sums({tile}, ROWS, HP, {self.spec.group_size})"

    def needed(self, part: Pointwise) -> list[str]:
        """List the variables of the cell's parameter vectors that `part` reads, except vectors with a single value."""
        return [f"v_{name}" for name, size in self.spec.vectors if size != "1" and name in part.arguments]

    def states_of(self, part: Pointwise) -> list[str]:
        return [s for s in self.spec.states if f"s_{s}" in part.arguments]

    def gates_of(self, part: Pointwise) -> list[Gate]:
        return [gate for gate in self.spec.gates if gate.mid == (part is self.spec.mid)]

    def is_held(self, product: Product) -> bool:
        return self.resident and self.spec.products.index(product) < self.held

    def hold(self) -> None:
        for product in self.spec.products:
            if self.is_held(product):
                self.put(f"{product.name} = rounded({self.tile(product)}, PRECISION)")

    @abc.abstractmethod
    def tile(self, product: Product) -> str:
        """Return the expression of the whole weights of a product, as they stand in memory."""

    def multiply(self, total: str, factor: str, product: Product) -> None:
        """Append code that adds the matrix product of the tile `factor` and the weights of `product` to `total`.

        Only kernels that keep the whole state in registers have this code. Others split the product into tiles.
        """
        tile = product.name if self.is_held(product) else f"rounded({self.tile(product)}, PRECISION)"
        self.put(f"{total} = multiply({total}, {factor}, {tile}, PRECISION)")

    def weights_at(self, product: Product) -> str:
        return f"{product.key}_ptr" + (f" + {product.offset} * {product.columns}" if product.offset else "")
