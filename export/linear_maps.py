# SPDX-License-Identifier: Apache-2.0
"""The parts of a model that are linear maps, as nodes of an ONNX graph: embedding, residual blocks and head."""

from torch import Tensor

from edgernn.blocks import ResidualBlock
from edgernn.export.model_graph import ModelGraph
from edgernn.heads import TiedHead
from edgernn.model import SequenceModel


def add_embedding(graph: ModelGraph, rows: Tensor, x: str) -> str:
    """Add nodes that look up the rows of the embedding for word indices x, as float32; return the result's name."""
    if graph.type == "float32":
        return graph.node("Gather", [graph.weight("embedding.E", rows), x], "embedding.rows")
    value, scale = graph.kept("embedding.E", rows)
    gathered = graph.node("Gather", [value, x], "embedding.rows.kept")
    scales = None if scale is None else graph.node("Gather", [scale, x], "embedding.rows.s")
    return graph.floats("embedding.rows", (gathered, scales))


def _add_linear(graph: ModelGraph, x: str, name: str, weight: Tensor, bias: Tensor, output: str) -> str:
    """Add the nodes of a linear map W x + b; a float32 file stores Wᵀ as NAME.W, all others store W as NAME.W.T."""
    if graph.type == "float32":
        matrix = graph.weight(f"{name}.W", weight.T)
    else:
        matrix = _transposed(graph, name, graph.kept(f"{name}.W.T", weight))
    return _product(graph, x, name, matrix, bias, output)


def _transposed(graph: ModelGraph, name: str, kept: tuple[str, str | None]) -> str:
    """Add nodes that convert a stored matrix (`ModelGraph.kept`) to float32 and transpose it; return NAME.W."""
    return graph.node("Transpose", [graph.floats(f"{name}.W.T", kept)], f"{name}.W", perm=[1, 0])


def _product(graph: ModelGraph, x: str, name: str, matrix: str, bias: Tensor, output: str) -> str:
    added = graph.weight(f"{name}.b", bias)
    return graph.node("Add", [graph.node("MatMul", [x, matrix], f"{name}.product"), added], output)


def add_head(graph: ModelGraph, model: SequenceModel, x: str) -> None:
    """Add the nodes of a model's head, which compute y from `x`, the output of the last layer."""
    head = model.head
    if head is None:
        graph.node("Identity", [x], "y")
    elif not isinstance(head, TiedHead):
        _add_linear(graph, x, "head", head.weight, head.bias, "y")
    elif graph.type == "float32":
        matrix = graph.node("Transpose", ["embedding.E"], "embedding.E.T", perm=[1, 0])
        _product(graph, x, "head", matrix, head.bias, "y")
    else:
        # it reads the stored matrix of the embedding
        matrix = _transposed(graph, "head", graph.kept_names("embedding.E"))
        _product(graph, x, "head", matrix, head.bias, "y")


class BlockNodes:
    """Adds the nodes of a residual block around a layer, before and after the node of the layer.

    Values in the graph have names that begin with NAME.block, where NAME is that of the layer, such as layer0.

    Args:
        graph: The graph.
        block: The block.
        name: Name of the layer.
    """

    def __init__(self, graph: ModelGraph, block: ResidualBlock, name: str) -> None:
        self._graph, self._block, self._name = graph, block, f"{name}.block"
        self._u = ""

    def enter(self, x: str) -> str:
        """Add the block's nodes before the layer; return the name of the layer's input for the block's input x."""
        graph, norm = self._graph, self._block.norm
        self._u = x if self._block.encoder is None else self._map("encoder", x)
        scale, shift = (
            graph.weight(f"{self._name}.norm.{part}", value)
            for part, value in (("scale", norm.weight), ("shift", norm.bias))
        )
        read = [self._u, scale, shift]
        return graph.node("LayerNormalization", read, f"{self._name}.normalised", axis=-1, epsilon=norm.eps)

    def leave(self, h: str, last: bool) -> str:
        """Add the block's nodes after the layer.

        Args:
            h: Name of the layer's output (T, B, H), or with `last` of its output at the last step (B, H).
            last: True to compute the output of the last step only, (B, H).

        Returns:
            The name of the block's output.
        """
        graph, u = self._graph, self._u
        if last:
            index = graph.node("Constant", [], f"{self._name}.last", value_int=-1)
            u = graph.node("Gather", [u, index], f"{self._name}.u.last", axis=0)
        branch = self._map("linear", h)
        if self._block.gate is not None:
            gate = graph.node("Sigmoid", [self._map("gate", h)], f"{self._name}.gate.open")
            branch = graph.node("Mul", [branch, gate], f"{self._name}.branch")
        return graph.node("Add", [u, branch], f"{self._name}.y")

    def _map(self, part: str, x: str) -> str:
        linear, name = self._block.linear_maps()[part], f"{self._name}.{part}"
        return _add_linear(self._graph, x, name, linear.weight, linear.bias, f"{name}.y")
