"""LoRA adapters for a whole model, and dtype policies of quantised layers."""

from __future__ import annotations

import re

import keras

from keras_transformer.config.options import check_names, check_number
from keras_transformer.nn.arguments import check_size
from keras_transformer.nn.kernels.keras_private import ToldWhenBuilt, layers_within


def enable_lora(
    model: keras.layers.Layer, rank: int, lora_alpha: float | None = None
) -> None:
    """Freezes a model and adds LoRA adapters to its `Dense` and `EinsumDense` layers.

    Each matrix W (D, E) becomes W + lora_alpha / rank A B, with trained A (D, rank) and
    B (rank, E): Hu et al., 2021, https://arxiv.org/abs/2106.09685. Compile the model
    afterwards. Saved files hold the sums; load them with `compile=False`, because the
    optimizer's state is that of A and B. Loading weights resets B to zero.

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
        problem = None
        if not layer.built:
            problem = "is not built"
        elif layer.lora_enabled:
            problem = "has adapters already"
        elif layer.kernel_constraint:
            problem = "has a constraint on its matrix"
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
    """Makes files hold the sums only, and loading one keep A and reset B to zero."""
    # Keras' `load_own_variables` resets both to zero, which no gradient can change. A
    # subclass cannot do it: files find layers in a list by the names of their classes,
    # and Keras rounds no subclass of `Dense` to integers.
    load = layer.load_own_variables
    configuration = layer.get_config

    def load_own_variables(store):
        a = keras.ops.copy(layer.lora_kernel_a)
        load(store)
        layer.lora_kernel_a.assign(a)

    def get_config():
        kept = configuration()
        return {n: kept[n] for n in kept if n not in ("lora_rank", "lora_alpha")}

    layer.load_own_variables = load_own_variables
    layer.get_config = get_config


@keras.saving.register_keras_serializable(package="keras_transformer")
class QuantisedParts(keras.dtype_policies.DTypePolicyMap):
    """Policies of the parts of a layer by path, with what each was quantised by."""

    # A policy alone does not tell how the inputs of a part are rounded.

    def __init__(self, default_policy=None, policy_map=None, configs=None):
        super().__init__(default_policy, policy_map)
        self.configs = configs or {}  # `keras.quantizers.QuantizationConfig` by path

    def configure(self, part):
        """Gives a part that was built quantised its configuration, if it has one."""
        for path, config in self.configs.items():
            if part.path is not None and re.fullmatch(path, part.path):
                part.quantization_config = config
                if hasattr(part, "inputs_quantizer"):
                    part.inputs_quantizer = config.activation_quantizer

    def get_config(self):
        configs = keras.saving.serialize_keras_object(self.configs)
        return super().get_config() | {"configs": configs}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        configs = keras.saving.deserialize_keras_object(config["configs"])
        return super().from_config(config | {"configs": configs}, custom_objects)


class KeepsQuantisation(ToldWhenBuilt):
    """Mixin, before a Keras layer or model: a file keeps how parts are quantised.

    Arguments with names of other systems are refused with the names here.
    """

    def __new__(cls, *args, **options):
        check_names(cls, options)
        return super().__new__(cls, *args, **options)

    def when_built(self):
        """Gives the parts the configurations of a file."""
        if isinstance(self.dtype_policy, QuantisedParts):
            for part in layers_within(self):
                self.dtype_policy.configure(part)

    def get_config(self):
        return super().get_config() | _quantised_dtype(self)


def _quantised_dtype(layer):
    """Returns the "dtype" of a configuration whose parts are quantised, else {}."""
    parts = [part for part in layers_within(layer) if part.quantization_mode]
    if not parts:
        return {}
    above = (layer.path or "").removesuffix(layer.name)
    policies = {}
    configs = {}
    for part in parts:
        # Relative to the layer, whatever will contain it.
        path = f"(.*/)?{re.escape(part.path.removeprefix(above))}"
        policies[path] = policy_of(part)
        config = getattr(part, "quantization_config", None)
        # A configuration that calibrates holds the layers; the policy tells all of it.
        if config is not None and config.mode not in ("gptq", "awq"):
            configs[path] = config
    kept = QuantisedParts(policy_of(layer).name, policies, configs)
    return {"dtype": keras.saving.serialize_keras_object(kept)}


def policy_of(layer):
    """Returns a layer's own dtype policy, looked up if it has a map of policies."""
    policy = layer.dtype_policy
    if not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return policy
    return policy[layer.path] if layer.path else policy.default_policy
