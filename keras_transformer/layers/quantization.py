"""The dtype policies of quantised layers."""

from __future__ import annotations

import keras

MODES = ("int8", "int4")


@keras.saving.register_keras_serializable(package="keras_transformer")
class QuantizedPolicy(keras.dtype_policies.QuantizedDTypePolicy):
    """Quantised dtype policy of a layer that rounds its inputs in a way of its own.

    Keras' policies do not say how inputs are rounded, so a layer made from one rounds
    them in its mode's default way.

    Args:
        mode: "int8" or "int4".
        source_name: Name of the float policy.
        activation_quantizer: `keras.quantizers.Quantizer`, or `None` to leave the
            inputs as they are.

    Example:
        >>> QuantizedPolicy("int8", "float32").name
        'int8_from_float32'
    """

    def __init__(self, mode, source_name=None, activation_quantizer=None):
        super().__init__(mode, source_name)
        self.activation_quantizer = activation_quantizer

    def get_config(self):
        return super().get_config() | {
            "activation_quantizer": keras.saving.serialize_keras_object(
                self.activation_quantizer
            )
        }

    @classmethod
    def from_config(cls, config):
        quantizer = config["activation_quantizer"]
        quantizer = keras.saving.deserialize_keras_object(quantizer)
        return cls(**(config | {"activation_quantizer": quantizer}))


def check_mode(mode):
    """Raises `NotImplementedError` unless our layers can be quantised like that."""
    reasons = {
        "float8": "it speeds up training on accelerators that multiply in float8",
        "gptq": "it is calibrated through layers of the class `keras.layers.Dense`",
        "awq": "it is calibrated through layers of the class `keras.layers.Dense`",
    }
    if mode not in MODES:
        raise NotImplementedError(
            f"The layers of keras_transformer quantise as 'int8' or 'int4', and not as "
            f"{mode!r}: {reasons.get(mode, 'it is not known')}. Received: mode={mode!r}"
        )


def policy_of(layer):
    """Returns a layer's dtype policy, out of a map of policies if it has one."""
    policy = layer.dtype_policy
    is_map = isinstance(policy, keras.dtype_policies.DTypePolicyMap)
    return policy[layer.path] if is_map else policy


def float_policy(policy):
    """Returns the dtype policy of what is not quantised, dropout for example."""
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return policy.default_policy
    if policy.quantization_mode is None:
        return policy
    return keras.dtype_policies.get(policy.name.split("_from_")[-1])


def quantized_policy(config, policy):
    """Returns the quantised policy of a configuration.

    Args:
        config: `keras.quantizers.Int8QuantizationConfig` or `Int4QuantizationConfig`.
        policy: The layer's policy, whose float types stay.
    """
    check_mode(config.mode)
    name, quantizer = config.mode, config.activation_quantizer
    source = float_policy(policy).name
    if name == "int4":
        size = config.block_size
        name = f"int4/{-1 if size is None else size}"
    stock = keras.dtype_policies.get(f"{name}_from_{source}")
    if _config(quantizer) == _config(activation_quantizer(stock)):
        return stock
    return QuantizedPolicy(config.mode, source, quantizer)


def _config(quantizer):
    return quantizer and (type(quantizer), quantizer.get_config())


def activation_quantizer(policy):
    """Returns what rounds the inputs of a layer of a quantised policy, or `None`."""
    if isinstance(policy, QuantizedPolicy):
        return policy.activation_quantizer
    is_int8 = policy.quantization_mode == "int8"
    return keras.quantizers.AbsMaxQuantizer() if is_int8 else None


def block_size(policy):
    """Returns how many inputs of a quantised matrix share a scale; `None` for all."""
    size = getattr(policy, "block_size", None)
    return None if size in (None, -1) else size
