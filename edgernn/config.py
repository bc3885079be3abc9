# SPDX-License-Identifier: Apache-2.0
"""The configuration of a model: one tree, which Python, the command line, config.json and exported files share."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from edgernn.cells import CELLS
from edgernn.cells.base import Cell, Parts
from edgernn.cells.norm import Norm
from edgernn.cells.recurrent import recurrent_weights
from edgernn.imputers import Imputer
from edgernn.layer import RecurrentLayer
from edgernn.names import DEFAULT_RULE, combined_name, resolve, resolve_imputer
from edgernn.rules.base import UpdateRule
from edgernn.settings import NOT_SET, Word, bind, build, configuration, fields_of, options_of

Size = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]


@configuration
class CellConfig:
    """A cell: its name in CELLS, or its class, and the options of its constructor."""

    name: Annotated[str | type[Cell], NOT_SET] = "gru"
    options: dict[str, Any] = field(default_factory=dict)


@configuration
class RuleConfig:
    """An update rule: its name in RULES, or its class, and the options of its constructor."""

    name: Annotated[str | type[UpdateRule], NOT_SET] = DEFAULT_RULE
    options: dict[str, Any] = field(default_factory=dict)


@configuration
class RecurrentConfig:
    """How a cell stores its recurrent weights; without either, whole."""

    rank: Annotated[int | None, Field(ge=1, description="Rank of the recurrent weights. Default: not factorised.")] = (
        None
    )
    density: Annotated[
        float | None, Field(gt=0, le=1, description="Share of the recurrent weights' blocks that stays. Default: all.")
    ] = None


@configuration
class NormConfig:
    """The normalisation of a cell."""

    name: Annotated[
        str | None, Field(description="Normalisation: layer or recurrent-batch. Default: none."), Word("norm")
    ] = None
    steps: Annotated[
        int, Field(ge=1, description="Steps for which recurrent-batch keeps statistics."), Word("norm_steps")
    ] = 1000


@configuration
class LayerConfig:
    """A recurrent layer but for its sizes. The imputer stands before the first layer of a model alone."""

    cell: CellConfig = CellConfig()
    rule: RuleConfig = RuleConfig()
    recurrent: RecurrentConfig = RecurrentConfig()
    norm: NormConfig = NormConfig()
    imputer: Annotated[
        str | type[Imputer] | None, Field(description="Imputer of missing values: gru-d or rits. Default: none.")
    ] = None

    @classmethod
    def of(
        cls,
        cell: str | type[Cell] = "gru",
        rule: str | type[UpdateRule] | None = None,
        *,
        cell_options: Mapping[str, Any] | None = None,
        rule_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> "LayerConfig":
        """From names, see `named`, and settings by short or dotted name. Raises UsageError as `bind` does."""
        layer = build(cls, bind(settings, layer=fields_of(cls))["layer"])
        return layer.named(cell, rule, cell_options, rule_options)

    def named(
        self,
        cell: str | type[Cell],
        rule: str | type[UpdateRule] | None = None,
        cell_options: Mapping[str, Any] | None = None,
        rule_options: Mapping[str, Any] | None = None,
    ) -> "LayerConfig":
        """The same with other cell and rule.

        Args:
            cell: A class, FILE.py:CLASS, or a name that may imply a rule or an imputer, as sarnn does.
            rule: A name or a class, in place of the rule that the cell's name implies.
            cell_options: Options of the cell's constructor.
            rule_options: Options of the rule's constructor.

        Raises:
            UsageError: An unknown name.
        """
        cell_type, rule_type = resolve(cell, rule)
        imputer = resolve_imputer(cell, self.imputer)
        options = dict(cell_options or {})
        return dataclasses.replace(
            self,
            # a class of the user's stays one, as no name leads to it
            cell=CellConfig(
                cell_type.name if cell_type.name in CELLS and cell is not cell_type else cell_type, options
            ),
            rule=RuleConfig(rule_type if rule is rule_type else rule_type.name, dict(rule_options or {})),
            imputer=imputer if imputer is None or self.imputer is imputer else imputer.name,
        )

    @property
    def name(self) -> str:
        """The name of cell and rule together."""
        cell, rule = (part if isinstance(part, str) else part.name for part in (self.cell.name, self.rule.name))
        return combined_name(cell, rule)

    @property
    def types(self) -> tuple[type[Cell], type[UpdateRule]]:
        """The classes of cell and rule. Raises UsageError for an unknown name."""
        return resolve(self.cell.name, self.rule.name)

    def make(self, input_size: int, hidden_size: int, imputer: Imputer | None = None) -> RecurrentLayer:
        """A new layer; an imputer gives the cell its own estimates and masks to read."""
        cell_type, rule_type = self.types
        size = input_size if imputer is None else 2 * imputer.features
        parts: Parts = {}
        if (self.recurrent.rank, self.recurrent.density) != (None, None):
            parts["recurrent"] = recurrent_weights(self.recurrent.rank, self.recurrent.density)
        if self.norm.name is not None:
            parts["norm"] = Norm(self.norm.name, self.norm.steps)
        cell = cell_type(size, hidden_size, **parts, **self.cell.options)
        return RecurrentLayer(cell, rule_type(size, hidden_size, **self.rule.options), imputer)


@configuration
class InputConfig:
    """The input of a model."""

    size: Annotated[Size, Word("input_size"), NOT_SET] = 1
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    vocabulary: Annotated[int | None, Field(ge=1), NOT_SET] = None


@configuration
class HeadConfig:
    """The output of a model: the last one or all, through a linear map where it has a size."""

    size: Annotated[int | None, Field(ge=1), Word("output_size"), NOT_SET] = None
    output: Annotated[Literal["last", "all"], NOT_SET] = "last"
    tied: Annotated[bool, Field(description="Share the head's weights with the embedding.")] = False


@configuration
class DropoutConfig:
    """The rates at which training leaves out entries and weights."""

    embedding: Annotated[
        Rate, Field(description="Share of the words that training leaves out."), Word("dropout_embedding")
    ] = 0.0
    input: Annotated[
        Rate, Field(description="Share of the first layer's input that training leaves out."), Word("dropout_input")
    ] = 0.0
    hidden: Annotated[
        Rate, Field(description="Share of what training leaves out between layers."), Word("dropout_hidden")
    ] = 0.0
    output: Annotated[
        Rate, Field(description="Share of the last layer's output that training leaves out."), Word("dropout_output")
    ] = 0.0
    weight: Annotated[
        Rate, Field(description="Share of the weights R and C that training leaves out."), Word("weight_drop")
    ] = 0.0
    weight_input: Annotated[
        Rate, Field(description="Share of the weights W and V that training leaves out."), Word("weight_drop_input")
    ] = 0.0


@configuration
class ModelConfig:
    """A SequenceModel: layers that are alike but for their sizes, what they read, and what becomes of their output."""

    layer: LayerConfig = LayerConfig()
    hidden_size: Annotated[Size, Field(description="Neurons of a layer.")] = 128
    layers: Annotated[Size, Field(description="Number of layers.")] = 1
    last_size: Annotated[
        int | None, Field(ge=1, description="Neurons of the last of several layers. Default: hidden_size.")
    ] = None
    bidirectional: Annotated[bool, Field(description="Add a cell to each layer that reads backwards.")] = False
    input: InputConfig = InputConfig()
    head: HeadConfig = HeadConfig()
    dropout: DropoutConfig = DropoutConfig()

    @classmethod
    def of(
        cls,
        cell: str | type[Cell] = "gru",
        input_size: int = 1,
        hidden_size: int = 128,
        output_size: int | None = None,
        *,
        rule: str | type[UpdateRule] | None = None,
        output: Literal["last", "all"] = "last",
        mean: Tensor | Sequence[float] | float = 0.0,
        std: Tensor | Sequence[float] | float = 1.0,
        vocabulary: int | None = None,
        cell_options: Mapping[str, Any] | None = None,
        rule_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> "ModelConfig":
        """From arguments by their short names.

        Args:
            cell: As rule, cell_options and rule_options: see `LayerConfig.named`.
            input_size: I, the size of the input, or of the embedding of words.
            hidden_size: H, the neurons of a layer.
            output_size: O, the size of the head's output; None: no head.
            rule: See cell.
            output: "last" for the last output alone, "all" for one a step.
            mean: What the model subtracts from its input, (I,) or one number.
            std: What the model divides its input by, (I,) or one number.
            vocabulary: The number of words, where the input is words.
            cell_options: See cell.
            rule_options: See cell.
            settings: All other settings of the tree, by short or dotted name.

        Raises:
            UsageError: An unknown name or a bad value.
        """
        config = build(cls, bind({"hidden_size": hidden_size, **settings}, model=fields_of(cls))["model"])
        return dataclasses.replace(
            config,
            layer=config.layer.named(cell, rule, cell_options, rule_options),
            input=InputConfig(size=input_size, mean=_numbers(mean), std=_numbers(std), vocabulary=vocabulary),
            head=dataclasses.replace(config.head, size=output_size, output=output),
        )

    @classmethod
    def from_words(
        cls, words: Mapping[str, object], cell: str, rule: str | None = None, input_size: int = 1
    ) -> "ModelConfig":
        """From words of a command line: settings of the tree, the cell and the rule, by short or dotted name.

        Raises:
            UsageError: As `bind`, and for an unknown cell or rule.
        """
        cell_type, rule_type = resolve(cell, rule)
        parts = {"cell": options_of(cell_type), "rule": options_of(rule_type)}
        values = bind(words, model=fields_of(cls), **parts)
        cell_options, rule_options = ({path[0]: value for path, value in values[part].items()} for part in parts)
        config = build(cls, values["model"])
        layer = config.layer.named(cell, rule, cell_options, rule_options)
        return dataclasses.replace(config, layer=layer, input=InputConfig(size=input_size))

    @property
    def sizes(self) -> list[int]:
        """H of each layer."""
        return [self.hidden_size] * (self.layers - 1) + [self.last_size or self.hidden_size]


def _numbers(value: Tensor | Sequence[float] | float) -> tuple[float, ...]:
    if isinstance(value, Tensor):
        return tuple(value.reshape(-1).tolist())
    return (float(value),) if isinstance(value, int | float) else tuple(map(float, value))
