"""The initializers, regularizers and constraints of a layer's weights."""

from __future__ import annotations

import keras

ENDS = ("initializer", "regularizer", "constraint")


def weight_options(initializer, regularizer=None, constraint=None):
    """Returns options of `add_weight`, made from what Keras' layers take.

    Args:
        initializer: Keras initializer, or its name.
        regularizer: Keras regularizer, its name or `None`.
        constraint: Keras constraint, its name or `None`.
    """
    # A name stays a name: making an object of it would draw a seed.
    if not isinstance(initializer, str):
        initializer = keras.initializers.get(initializer)
    return {
        "initializer": initializer,
        "regularizer": keras.regularizers.get(regularizer),
        "constraint": keras.constraints.get(constraint),
    }


def own_options(options):
    """Returns the options of one weight.

    An initializer draws the same numbers each time, so each weight gets a copy.
    """
    initializer = options["initializer"]
    if isinstance(initializer, keras.initializers.Initializer):
        initializer = initializer.clone()
    return options | {"initializer": initializer}


def serialised(option):
    """Returns one of the options as a layer's configuration has it."""
    is_plain = option is None or isinstance(option, str)
    return option if is_plain else keras.saving.serialize_keras_object(option)


def keep_options(layer, **options):
    """Keeps options as attributes of a layer, of the names that Keras' layers use.

    Args:
        layer: The layer.
        **options: An initializer, a regularizer and a constraint of each kind of
            weights, such as `kernel_initializer`.
    """
    for kind in {name.rpartition("_")[0] for name in options}:
        names = [f"{kind}_{end}" for end in ENDS]
        made = weight_options(*map(options.get, names))
        for name, option in zip(names, made.values(), strict=True):
            setattr(layer, name, option)
    layer.weight_option_names = tuple(options)


def kept_options(layer):
    """Returns the options that a layer keeps, by their names."""
    return {name: getattr(layer, name) for name in layer.weight_option_names}


def kept_config(layer):
    """Returns them as the layer's configuration has them."""
    return {name: serialised(option) for name, option in kept_options(layer).items()}


def options_for(layer, kind):
    """Returns the arguments of `add_weight` for one weight.

    Args:
        layer: The layer that keeps the options.
        kind: "kernel", "bias" or "embeddings".
    """
    return own_options({end: getattr(layer, f"{kind}_{end}") for end in ENDS})
