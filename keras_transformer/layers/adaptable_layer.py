"""Layers and models whose matrices take adapters (LoRA) and can be quantised."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import keras
from keras import ops

from keras_transformer.kernels.keras_private import (
    CountsAsOneLayer,
    layers_within,
    unlocked,
)
from keras_transformer.layers.arguments import check_size
from keras_transformer.layers.quantization import (
    check_mode,
    float_policy,
    policy_of,
    quantized_policy,
)
from keras_transformer.layers.weight_matrix import WeightMatrix
from keras_transformer.types import Initializer


class HasMatrices:
    """Mixin before a Keras layer or model that owns `WeightMatrix`s.

    As with Keras' own layers, a file holds the matrices with their adapters merged into
    them, and a layer made from it has none.

    Attributes:
        lora_rank: Rank of the adapters of all matrices; `None` before `enable_lora`.
        lora_alpha: What their product is multiplied by, times the rank.
    """

    lora_rank = None
    lora_alpha = None
    _matrices = ()

    def add_matrix(self, name, shape, **options):
        """Adds a matrix of weights, as the layer's attribute `name`.

        Args:
            name: Name of its variable.
            shape: Its shape.
            **options: As for `WeightMatrix`.

        Returns:
            The `WeightMatrix`.
        """
        policy = self._matrix_policy(name)
        matrix = WeightMatrix(self, name, shape, policy=policy, **options)
        self._matrices = (*self._matrices, matrix)
        return matrix

    def _matrix_policy(self, name):
        """Returns the quantised policy that a matrix is to be made with, or `None`."""
        raise NotImplementedError

    def _quantize_matrices(self, config):
        policy = quantized_policy(config, self.dtype_policy)
        for matrix in self._matrices:
            matrix.quantize(config, policy)
        return policy

    @property
    def lora_enabled(self) -> bool:
        """Whether a matrix has an adapter."""
        return self.lora_rank is not None or any(m.lora_rank for m in self._matrices)

    def adapt_matrices(self, matrices, rank, lora_alpha, a_initializer, b_initializer):
        """Adds adapters to some of the layer's matrices.

        Args:
            matrices: `WeightMatrix`s of the layer.
            rank: As for `enable_lora`, like the rest.
            lora_alpha: Strength of the adapters.
            a_initializer: Initializer of A.
            b_initializer: Initializer of B.

        Returns:
            The strength.
        """
        self._check_adapters(rank, matrices)
        lora_alpha = rank if lora_alpha is None else lora_alpha
        with unlocked(self):
            for matrix in matrices:
                matrix.add_adapter(rank, lora_alpha, a_initializer, b_initializer)
        return lora_alpha

    def _add_adapters(self, rank, lora_alpha, a_initializer, b_initializer):
        options = rank, lora_alpha, a_initializer, b_initializer
        lora_alpha = self.adapt_matrices(self._matrices, *options)
        self.lora_rank, self.lora_alpha = rank, lora_alpha

    def _check_adapters(self, rank, matrices=None):
        matrices = self._matrices if matrices is None else matrices
        check_size("rank", rank)
        if not self.built:
            raise ValueError(
                "`enable_lora` needs the weights: call or build the layer first. "
                f"Received: the layer {self.name!r}, which is not built"
            )
        ranks = self.lora_rank, *(matrix.lora_rank for matrix in matrices)
        for present in filter(None, ranks):
            raise ValueError(
                "`enable_lora` can be called once. Received: the layer "
                f"{self.name!r}, whose adapters have the rank {present}"
            )
        constrained = [m.name for m in matrices if m.options.get("constraint")]
        if constrained:
            raise ValueError(
                "A matrix with an adapter cannot have a constraint, which would not "
                "hold for their sum; leave the constraint out. Received: the layer "
                f"{self.name!r} with a constraint on {', '.join(constrained)}"
            )

    def _saved_variables(self):
        """The layer's own variables as a file has them: all but the adapters.

        What is quantised stands last, whether it was made so or became it.
        """
        store = {}
        super().save_own_variables(store)
        adapters = {id(v) for m in self._matrices for v in (m.lora_a, m.lora_b)}
        quantized = [m for m in self._matrices if m.policy is not None]
        rounded = {id(v) for m in quantized for v in (m.variable, m.scale, m.zero)}
        saved = [v for v in store.values() if id(v) not in adapters]
        return sorted(saved, key=lambda variable: id(variable) in rounded)

    def save_own_variables(self, store):
        """As `keras.layers.Layer.save_own_variables`, with adapters merged."""
        merged = {}
        for matrix in self._matrices:
            merged |= matrix.stored()
        for i, variable in enumerate(self._saved_variables()):
            store[str(i)] = merged.get(id(variable), variable)

    def load_own_variables(self, store):
        """As `keras.layers.Layer.load_own_variables`; adapters begin anew."""
        variables = self._saved_variables()
        if not self.lora_enabled and len(store.keys()) != len(variables):
            super().load_own_variables(store)  # Its error says what is wrong.
        for i, variable in enumerate(variables):
            variable.assign(store[str(i)])
        for matrix in self._matrices:
            # A keeps its values: if both were zero, neither would get a gradient.
            if matrix.lora_b is not None:
                matrix.lora_b.assign(ops.zeros(matrix.lora_b.shape))


class AdaptableLayer(CountsAsOneLayer, HasMatrices, keras.layers.Layer):
    """Base of the layers that own matrices of weights."""

    def _matrix_policy(self, name):
        policy = policy_of(self)
        if policy.quantization_mode is None:
            return None
        check_mode(policy.quantization_mode)
        self._is_quantized = True
        return policy

    def enable_lora(
        self, rank: int, lora_alpha: float | None = None,
        a_initializer: Initializer = "he_uniform", b_initializer: Initializer = "zeros",
    ) -> None:  # fmt: skip
        """Trains two small matrices in place of each matrix of the layer.

        As `keras.layers.Dense.enable_lora`: W becomes W + lora_alpha / rank A B, and
        A (D, rank) and B (rank, E) are trained in place of W (D, E). Hu et al., 2021,
        https://arxiv.org/abs/2106.09685. Saved files hold the sums. Compile the model
        afterwards.

        Args:
            rank: Width of the adapters.
            lora_alpha: Strength of the adapters; default `rank`.
            a_initializer: Initializer of A.
            b_initializer: Initializer of B.

        Raises:
            ValueError: If the layer is not built, has adapters already or has a
                constraint on a matrix, or `rank` is not positive.
        """
        self._add_adapters(rank, lora_alpha, a_initializer, b_initializer)

    def quantize(
        self, mode: Literal["int8", "int4"] | None = None,
        type_check: bool = True,
        config: keras.quantizers.QuantizationConfig | None = None,
    ) -> None:  # fmt: skip
        """Rounds the layer's matrices to integers of 8 or 4 bits.

        As `keras.layers.Dense.quantize`: with "int8" the inputs are rounded too, and
        the products are of integers; with "int4" the inputs are not. It saves memory.
        Speed depends on the machine: most CPUs multiply no faster. A LiteRT file of the
        float model, quantised as it is exported, is the fast way there.

        Args:
            mode: "int8" or "int4".
            type_check: Ignored: layers that inherit from ours are quantised too.
            config: `keras.quantizers.Int8QuantizationConfig` or
                `Int4QuantizationConfig`, in place of `mode`.

        Raises:
            NotImplementedError: If the mode is another one.
            ValueError: If the layer is not built or is quantised already.
        """
        policy = self._quantize_matrices(config)
        self._is_quantized = True
        self.dtype_policy = policy

    def quantized_call(self, *args, **kwargs):
        """As `call`, which works with the matrices as they are."""
        return self.call(*args, **kwargs)


class HasAdaptableLayers(HasMatrices):
    """Mixin before a Keras layer or model that is made of such layers.

    Its configuration says which of them are quantised, by a map of dtype policies.
    """

    def _matrix_policy(self, name):
        policies = self.dtype_policy
        if not isinstance(policies, keras.dtype_policies.DTypePolicyMap):
            return None
        policy = policies[f"{self.path}/{name}"]
        return None if policy.quantization_mode is None else policy

    def enable_lora(
        self, rank: int, lora_alpha: float | None = None,
        a_initializer: Initializer = "he_uniform", b_initializer: Initializer = "zeros",
    ) -> None:  # fmt: skip
        """Freezes all weights and adds adapters to every matrix, which are trained.

        As `enable_lora` of each layer, Keras' own layers included, but everything else
        is frozen too: biases, norms, learned positions. To adapt only some layers, set
        `trainable = False` and call `enable_lora` of these. Compile a model afterwards.

        Args:
            rank: Width of the adapters.
            lora_alpha: Strength of the adapters; default `rank`.
            a_initializer: Initializer of A.
            b_initializer: Initializer of B.

        Raises:
            ValueError: If a layer is not built, has adapters already or has a
                constraint on a matrix, or `rank` is not positive.
        """
        self._check_adapters(rank)
        layers = [
            layer
            for layer in layers_within(self)
            if hasattr(layer, "enable_lora")
            and not isinstance(layer, HasAdaptableLayers)
        ]
        for layer in layers:
            if isinstance(layer, HasMatrices):
                layer._check_adapters(rank)
            else:
                _check_layer_of_keras(layer)
        for variable in self.trainable_variables:
            variable.trainable = False
        options = rank, lora_alpha, a_initializer, b_initializer
        for layer in layers:
            layer.enable_lora(*options)
        self._add_adapters(*options)
        if isinstance(self, keras.Model):
            # They hold the variables that were trained before.
            self.train_function = self.test_function = self.predict_function = None

    def quantize(
        self, mode: Literal["int8", "int4"] | None = None,
        type_check: bool = True,
        config: keras.quantizers.QuantizationConfig | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Rounds the matrices of all its layers to integers of 8 or 4 bits.

        As `keras.Model.quantize`. What has no matrix, such as a norm, stays as it is.
        The layers say what it means; it does for Keras' own layers, too. Objects that
        were made for the model before, a `Translator` for example, are to be made anew.

        Args:
            mode: "int8" or "int4".
            type_check: As `keras.Model.quantize`.
            config: `keras.quantizers.Int8QuantizationConfig` or
                `Int4QuantizationConfig`, in place of `mode`.
            **kwargs: As `keras.Model.quantize`.

        Raises:
            NotImplementedError: If the mode is another one.
            ValueError: If a layer is not built or is quantised already.
        """
        check_mode(config.mode)
        if isinstance(self, keras.Model):
            super().quantize(mode, config=config, type_check=type_check, **kwargs)
        else:
            for layer in layers_within(self):
                _quantize(layer, config, type_check)
        # Filters choose among layers.
        if kwargs.get("filters") is None:
            self._quantize_matrices(config)

    def get_config(self) -> dict[str, Any]:
        config, policies = super().get_config(), {}
        for layer in layers_within(self):
            if layer.quantization_mode is not None:
                policies[self._pattern(layer.path)] = policy_of(layer)
        for matrix in self._matrices:
            if matrix.policy is not None:
                policies[self._pattern(matrix.name)] = matrix.policy
        if policies:
            name = float_policy(self.dtype_policy).name
            policies = keras.dtype_policies.DTypePolicyMap(name, policies)
            config["dtype"] = keras.saving.serialize_keras_object(policies)
        return config

    def _pattern(self, path):
        """The path of a part, wherever the layer itself will be."""
        return f"(.*/)?{path.removeprefix(f'{self.path}/')}"


def _check_layer_of_keras(layer):
    """Raises the errors of `enable_lora` of Keras' layers before one is changed."""
    problems = {
        "is not built": not layer.built,
        "has adapters already": getattr(layer, "lora_enabled", False),
        "has a constraint on its matrix": any(
            getattr(layer, f"{name}_constraint", None)
            for name in ("kernel", "embeddings")
        ),
        "is quantised by GPTQ": layer.quantization_mode == "gptq",
    }
    for problem, is_met in problems.items():
        if is_met:
            raise ValueError(
                "`enable_lora` needs layers that are built, without adapters and "
                "without constraints; to adapt some layers, call it of these. "
                f"Received: the layer {layer.name!r}, which {problem}"
            )


def _quantize(layer, config, type_check):
    if isinstance(layer, AdaptableLayer) or not layers_within(layer):
        # What has nothing to round says so.
        with contextlib.suppress(NotImplementedError):
            layer.quantize(config=config, type_check=type_check)
