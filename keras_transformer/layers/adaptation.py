"""LoRA adapters for a whole model, and dtype policies of quantised layers."""

from __future__ import annotations

import re
from typing import Any

import keras

from keras_transformer.config.options import check_number
from keras_transformer.kernels.keras_private import layers_within
from keras_transformer.layers.arguments import check_size


def enable_lora(
    model: keras.layers.Layer, rank: int, lora_alpha: float | None = None
) -> None:
    """Freezes a model and adds LoRA adapters to its `Dense` and `EinsumDense` layers.

    Each matrix W (D, E) becomes W + lora_alpha / rank A B, with trained A (D, rank) and
    B (rank, E): Hu et al., 2021, https://arxiv.org/abs/2106.09685. Saved files hold the
    sums; loading a file resets B to zero. Compile the model afterwards.

    Args:
        model: A built model or layer.
        rank: Rank of the adapters.
        lora_alpha: Scale of the adapters; default `rank`.

    Raises:
        ValueError: If there is nothing to adapt, a layer is not built, has adapters or
            a constraint, or `rank` is not positive.

    Example:
        >>> layer = FeedForward(d_ff=8)
        >>> layer.build((None, None, 6))
        >>> enable_lora(layer, rank=2)
        >>> [variable.name for variable in layer.trainable_variables]
        ['lora_kernel_a', 'lora_kernel_b', 'lora_kernel_a', 'lora_kernel_b']
    """
    check_size("rank", rank)
    check_number("lora_alpha", lora_alpha, optional=True)
    kinds = keras.layers.Dense, keras.layers.EinsumDense
    layers = [layer for layer in layers_within(model) if isinstance(layer, kinds)]
    if not layers:
        expected = "`model` must have layers of the class `keras.layers.Dense`"
        raise ValueError(f"{expected}. Received: {model.name!r}, which has none")
    for layer in layers:  # Checks all before it changes one.
        problem = (
            "is not built" if not layer.built
            else "has adapters already" if layer.lora_enabled
            else "has a constraint on its matrix" if layer.kernel_constraint else None
        )  # fmt: skip
        if problem is not None:
            raise ValueError(
                "`enable_lora` needs layers that are built, without adapters and "
                "without constraints. Received: "
                f"{layer.path or layer.name!r}, which {problem}"
            )
    for variable in model.trainable_variables:
        variable.trainable = False
    for layer in layers:
        layer.enable_lora(rank, lora_alpha)
        _keep_out_of_files(layer)
    if isinstance(model, keras.Model):  # These functions train the old weights.
        model.train_function = model.test_function = model.predict_function = None


def _keep_out_of_files(layer):
    """Makes loading a file keep A and reset B to zero."""
    # Keras' `load_own_variables` resets both to zero, which no gradient can change.
    load, configuration = layer.load_own_variables, layer.get_config

    def load_own_variables(store):
        a = keras.ops.copy(layer.lora_kernel_a)
        load(store)
        layer.lora_kernel_a.assign(a)

    def get_config():
        kept = configuration()
        return {n: kept[n] for n in kept if n not in ("lora_rank", "lora_alpha")}

    layer.load_own_variables, layer.get_config = load_own_variables, get_config


def quantised_policies(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the "dtype" of a configuration whose parts are quantised, else {}."""
    parts = [part for part in layers_within(layer) if part.quantization_mode]
    if not parts:
        return {}
    above = layer.path.removesuffix(layer.name)
    # Paths relative to the layer, whatever will contain it.
    paths = {re.escape(part.path.removeprefix(above)): part for part in parts}
    kept = {f"(.*/)?{path}": policy_of(part) for path, part in paths.items()}
    policies = keras.dtype_policies.DTypePolicyMap(policy_of(layer).name, kept)
    return {"dtype": keras.saving.serialize_keras_object(policies)}


def policy_of(layer):
    """Returns a layer's own dtype policy, looked up if it has a map of policies."""
    policy = layer.dtype_policy
    is_map = isinstance(policy, keras.dtype_policies.DTypePolicyMap)
    return policy[layer.path] if is_map else policy
