# SPDX-License-Identifier: Apache-2.0
"""Plans a streaming ONNX graph as a list of steps over float buffers, which the native library runs.

`pack` packs a file: `plan` calls `lowering`, which reads the nodes, and `rewrite`, which takes steps away, and
`content` writes the packed file. Steps (`steps`) read and write `views` of buffers, and a `builder` makes them.

To add an operator of ONNX, write its function in `operators`, or in `convolutions` or `recurrent`, and list it in
`operators.OPERATORS` or `lowering._OPERATORS`. The tests compare a graph with ONNX Runtime
(`tests/test_step_graph.py`).
"""
