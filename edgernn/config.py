# SPDX-License-Identifier: Apache-2.0
"""Configuration of a model: nested dataclasses used by Python, the command line, config.json and exported files."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn

from edgernn.cells import CELLS
from edgernn.cells.base import Cell, Parts
from edgernn.cells.norm import Norm
from edgernn.cells.recurrent import recurrent_weights
from edgernn.frontends import FrontendConfig
from edgernn.imputers import Imputer
from edgernn.layer import RecurrentLayer
from edgernn.names import DEFAULT_RULE, combined_name, resolve, resolve_imputer
from edgernn.rules.base import UpdateRule
from edgernn.settings import NOT_SET, Word, bind, build, configuration, fields_of, options_of
from edgernn.weight_types import WeightType

Size = Annotated[int, Field(ge=1)]
# building more takes minutes, and no network has as many
MOST_LAYERS = 1000
Rate = Annotated[float, Field(ge=0, lt=1)]
Weights = Annotated[
    WeightType,
    Field(
        description="Train for an exported file with this type of weight matrices: they are rounded in training, too."
    ),
]


@configuration
class CellConfig:
    """Cell of a layer: its class or its name (see `edgernn cells`), and the options of its constructor."""

    name: Annotated[str | type[Cell], NOT_SET] = "gru"
    options: dict[str, Any] = field(default_factory=dict)


@configuration
class RuleConfig:
    """Update rule of a layer, which selects the neurons that change at a step: its class or name, and its options.

    `layers` has options of each recurrent layer of a model, which replace those in `options`. The order is that of
    `SequenceModel.recurrent_layers`. The list is empty if all recurrent layers have the same options.
    """

    name: Annotated[str | type[UpdateRule], NOT_SET] = DEFAULT_RULE
    options: dict[str, Any] = field(default_factory=dict)
    layers: list[dict[str, Any]] = field(default_factory=list)


@configuration
class RecurrentConfig:
    """Storage of a cell's recurrent weights: low rank, block-sparse, or dense if neither is set."""

    rank: Annotated[int | None, Field(ge=1, description="Rank of low-rank recurrent weights. Default: full rank.")] = (
        None
    )
    density: Annotated[
        float | None,
        Field(gt=0, le=1, description="Share of nonzero blocks in sparse recurrent weights. Default: dense."),
    ] = None


@configuration
class NormConfig:
    """Normalisation of the matrix-vector products of a cell: "layer", "recurrent-batch" or none.

    "recurrent-batch" keeps separate statistics for each of the first `steps` time steps; "layer" has none.
    """

    name: Annotated[
        str | None,
        Field(description="Normalisation of matrix products: layer or recurrent-batch. Default: none."),
        Word("norm"),
    ] = None
    steps: Annotated[
        int,
        Field(ge=1, description="Number of time steps with statistics of their own, for norm=recurrent-batch."),
        Word("norm_steps"),
    ] = 1000


@configuration
class LayerConfig:
    """Configuration of a recurrent layer, without its sizes I and H; a model uses it for all of its layers.

    Only the first layer gets the imputer, which fills in missing input values.
    """

    cell: CellConfig = CellConfig()
    rule: RuleConfig = RuleConfig()
    recurrent: RecurrentConfig = RecurrentConfig()
    norm: NormConfig = NormConfig()
    imputer: Annotated[
        str | type[Imputer] | None,
        Field(description="Layer that fills in missing input values: gru-d or rits. Default: none."),
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
        """Create the configuration of a layer from a cell, an update rule and settings.

        Args:
            cell: Cell class, FILE.py:CLASS, or a name. The name of a paper's model, such as sarnn, may imply a rule
                or an imputer.
            rule: Rule class or name. Default: the rule that the cell's name implies, else "always".
            cell_options: Options of the cell's constructor.
            rule_options: Options of the rule's constructor.
            **settings: Values of further fields of the configuration, such as rank=16 (see `edgernn.settings`).

        Returns:
            The configuration.

        Raises:
            UsageError: A name is unknown, or a value is invalid.
        """
        layer = build(cls, bind(settings, layer=fields_of(cls))["layer"])
        return layer.named(cell, rule, cell_options, rule_options)

    def named(
        self,
        cell: str | type[Cell],
        rule: str | type[UpdateRule] | None = None,
        cell_options: Mapping[str, Any] | None = None,
        rule_options: Mapping[str, Any] | None = None,
    ) -> "LayerConfig":
        """Return a copy of this configuration with another cell and update rule.

        Args:
            cell: Cell class, FILE.py:CLASS, or a name. The name of a paper's model, such as sarnn, may imply a rule
                or an imputer.
            rule: Rule class or name. Default: the rule that the cell's name implies, else "always".
            cell_options: Options of the cell's constructor.
            rule_options: Options of the rule's constructor.

        Returns:
            The new configuration.

        Raises:
            UsageError: A name is unknown.
        """
        cell_type, rule_type = resolve(cell, rule)
        imputer = resolve_imputer(cell, self.imputer)
        options = dict(cell_options or {})
        return dataclasses.replace(
            self,
            # a user's class is kept as a class, because it is not in CELLS
            cell=CellConfig(
                cell_type.name if cell_type.name in CELLS and cell is not cell_type else cell_type, options
            ),
            rule=RuleConfig(rule_type if rule is rule_type else rule_type.name, dict(rule_options or {})),
            imputer=imputer if imputer is None or self.imputer is imputer else imputer.name,
        )

    @property
    def name(self) -> str:
        """Name of the cell together with its update rule, such as "gru", "gru + random", or "sarnn".

        sarnn is the short name of gru with the rule selective; most combinations have none.
        """
        cell, rule = (part if isinstance(part, str) else part.name for part in (self.cell.name, self.rule.name))
        return combined_name(cell, rule)

    @property
    def types(self) -> tuple[type[Cell], type[UpdateRule]]:
        """Classes of the cell and of the update rule; UsageError for an unknown name."""
        return resolve(self.cell.name, self.rule.name)

    def make(self, input_size: int, hidden_size: int, imputer: Imputer | None = None, index: int = 0) -> RecurrentLayer:
        """Create the recurrent layer with this configuration.

        Args:
            input_size: Number of inputs I of the cell; ignored if there is an imputer.
            hidden_size: Number of neurons H.
            imputer: Layer in front of the cell that fills in missing values, if any. The cell then reads the 2F outputs
                of the imputer: F values and F masks.
            index: Index of the layer in the model, which selects its options of the rule.

        Returns:
            The layer, with newly initialised weights.
        """
        cell_type, rule_type = self.types
        size = input_size if imputer is None else 2 * imputer.features
        parts: Parts = {}
        if (self.recurrent.rank, self.recurrent.density) != (None, None):
            parts["recurrent"] = recurrent_weights(self.recurrent.rank, self.recurrent.density)
        if self.norm.name is not None:
            parts["norm"] = Norm(self.norm.name, self.norm.steps)
        cell = cell_type(size, hidden_size, **parts, **self.cell.options)
        options = self.rule.options | (self.rule.layers[index] if self.rule.layers else {})
        return RecurrentLayer(cell, rule_type(size, hidden_size, **options), imputer)


@configuration
class InputConfig:
    """Input of a model: its size, the mean and std that standardise it, and the vocabulary size for word indices."""

    size: Annotated[Size, Word("input_size"), NOT_SET] = 1
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    vocabulary: Annotated[int | None, Field(ge=1), NOT_SET] = None


@configuration
class HeadConfig:
    """Output of a model, at the last step or at every step. A linear layer (head) with `size` outputs computes it.

    If `size` is None, the model has no head: its output is that of the last recurrent layer.
    """

    size: Annotated[int | None, Field(ge=1), Word("output_size"), NOT_SET] = None
    output: Annotated[Literal["last", "all"], NOT_SET] = "last"
    tied: Annotated[bool, Field(description="Use the word embedding as the weights of the output layer.")] = False


@configuration
class DropoutConfig:
    """Dropout rates of a model during training, and the largest sizes of the random masks on its input."""

    embedding: Annotated[
        Rate, Field(description="Dropout rate of whole words in the embedding."), Word("dropout_embedding")
    ] = 0.0
    input: Annotated[Rate, Field(description="Dropout rate of the first layer's input."), Word("dropout_input")] = 0.0
    hidden: Annotated[Rate, Field(description="Dropout rate between layers."), Word("dropout_hidden")] = 0.0
    output: Annotated[Rate, Field(description="Dropout rate of the last layer's output."), Word("dropout_output")] = 0.0
    weight: Annotated[
        Rate, Field(description="DropConnect rate of the recurrent weights R and C."), Word("weight_drop")
    ] = 0.0
    weight_input: Annotated[
        Rate, Field(description="DropConnect rate of the other weights, W and V."), Word("weight_drop_input")
    ] = 0.0
    steps: Annotated[
        int,
        Field(ge=0, description="Largest number of successive steps of the first layer's input that are masked."),
        Word("mask_steps"),
    ] = 0
    channels: Annotated[
        int,
        Field(ge=0, description="Largest number of successive channels of the first layer's input that are masked."),
        Word("mask_channels"),
    ] = 0


@configuration
class ModelConfig:
    """Configuration of a SequenceModel: layers and blocks, front end, input, head, dropout and type of the weights."""

    layer: LayerConfig = LayerConfig()
    hidden_size: Annotated[Size, Field(description="Number of neurons in a layer.")] = 128
    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS, description="Number of layers.")] = 1
    last_size: Annotated[
        int | None, Field(ge=1, description="Number of neurons in the last layer. Default: hidden_size.")
    ] = None
    bidirectional: Annotated[
        bool, Field(description="Add a second cell to each layer, which reads the sequence backwards.")
    ] = False
    block: Annotated[
        Literal["linear", "gated"] | None,
        Field(
            description="Residual block around each layer: layer normalisation before it, and a linear map or a gated "
            "linear unit after it. Default: none."
        ),
    ] = None
    frontend: FrontendConfig = FrontendConfig()
    input: InputConfig = InputConfig()
    head: HeadConfig = HeadConfig()
    dropout: DropoutConfig = DropoutConfig()
    weights: Weights = "float32"

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
        """Create the configuration of a model from arguments with short names.

        Args:
            cell: Cell class, FILE.py:CLASS, or a name; see `LayerConfig.named`.
            input_size: I, the size of the input, or of the embedding of words. With an audio front end it must be
                stack * hop, the number of new samples at each step.
            hidden_size: H, the number of neurons in a layer.
            output_size: O, the size of the head's output. Default: no head.
            rule: Rule class or name. Default: the rule that the cell's name implies, else "always".
            output: "last" for the output of the last step, "all" for the outputs of all steps.
            mean: One number or a vector (I,) that the model subtracts from its input. With an audio front end: one
                number or a vector (stack * bands,) that it subtracts from the features of the front end.
            std: Standard deviation by which the model then divides: one number, or a vector, as for `mean`.
            vocabulary: Number of words if the input is word indices. Default: the input is floats.
            cell_options: Options of the cell's constructor.
            rule_options: Options of the rule's constructor.
            **settings: Values of further fields of the configuration, such as layers=2 (see `edgernn.settings`).

        Returns:
            The configuration.

        Raises:
            UsageError: A name is unknown, or a value is invalid.
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
        """Create the configuration of a model from KEY=VALUE settings of the command line.

        Args:
            words: Dict from the name of each setting to its value. A setting is a field of this configuration, such as
                hidden_size or layer.recurrent.rank, whose short name is rank, or an option of the cell's or the
                rule's constructor.
            cell: Cell name or FILE.py:CLASS.
            rule: Rule name. Default: the rule that the cell's name implies, else "always".
            input_size: Number of inputs I.

        Returns:
            The configuration.

        Raises:
            UsageError: A cell, rule or setting is unknown, or a value is invalid.
        """
        cell_type, rule_type = resolve(cell, rule)
        parts = {"cell": options_of(cell_type), "rule": options_of(rule_type)}
        values = bind(words, model=fields_of(cls), **parts)
        cell_options, rule_options = ({path[0]: value for path, value in values[part].items()} for part in parts)
        config = build(cls, values["model"])
        layer = config.layer.named(cell, rule, cell_options, rule_options)
        return dataclasses.replace(config, layer=layer, input=InputConfig(size=input_size))

    @property
    def features(self) -> int:
        """Number of features that the first layer reads at a step, from the input or from an audio front end."""
        return self.input.size if self.frontend.name is None else self.frontend.features

    @property
    def title(self) -> str:
        """Name of the cell."""
        return self.layer.types[0].name

    @property
    def sizes(self) -> list[int]:
        """List of the numbers of neurons H of the layers, first layer first."""
        return [self.hidden_size] * (self.layers - 1) + [self.last_size or self.hidden_size]


@configuration
class NetworkConfig:
    """Configuration of a network of one's own: its class, front end, input and output.

    `name` is the class, or its name if it is not loaded. `options` are arguments of its constructor.
    """

    name: Annotated[str | type[nn.Module], NOT_SET] = ""
    options: dict[str, Any] = field(default_factory=dict)
    frontend: FrontendConfig = FrontendConfig()
    input: InputConfig = InputConfig()
    head: Annotated[HeadConfig, NOT_SET] = HeadConfig()
    weights: Weights = "float32"

    @property
    def features(self) -> int:
        """Number of features that the network reads at a step, from the input or from an audio front end."""
        return self.input.size if self.frontend.name is None else self.frontend.features

    @property
    def title(self) -> str:
        """Name of the class."""
        return self.name if isinstance(self.name, str) else self.name.__name__


AnyConfig = ModelConfig | NetworkConfig


def _numbers(value: Tensor | Sequence[float] | float) -> tuple[float, ...]:
    if isinstance(value, Tensor):
        return tuple(value.reshape(-1).tolist())
    return (float(value),) if isinstance(value, int | float) else tuple(map(float, value))
