"""`model.fit` on your own arrays: learn to reverse a sequence, then decode.

Works on every Keras backend; no text and no file are involved.

    python examples/fit_arrays.py --epochs 10
"""

import argparse
import keras_transformer.quiet

import keras
import numpy as np

from keras_transformer import (
    MaskedAccuracy,
    MaskedCrossentropy,
    SpecialIds,
    Transformer,
    TransformerConfig,
    TransformerSchedule,
    beam_search,
)

VOCABULARY_SIZE, LENGTH = 16, 9
PAD, START, END, FIRST = 0, 1, 2, 4


def make_data(rows, seed):
    """Returns `((source, target_in), target_out)`: targets are reversed sources."""
    rng = np.random.default_rng(seed)
    source = np.zeros((rows, LENGTH), "int32")
    target_in, target_out = source.copy(), source.copy()
    for row, length in enumerate(rng.integers(3, LENGTH, rows)):
        tokens = rng.integers(FIRST, VOCABULARY_SIZE, length)
        source[row, : length + 1] = [*tokens, END]
        target_out[row, : length + 1] = [*tokens[::-1], END]
        target_in[row, : length + 1] = [START, *tokens[::-1]]
    return (source, target_in), target_out


def make_model():
    """Returns a small `Transformer`, compiled as the paper trains it."""
    config = TransformerConfig.preset(
        "tiny",
        source_vocabulary_size=VOCABULARY_SIZE,
        target_vocabulary_size=VOCABULARY_SIZE,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_model=64,
        dropout_rate=0.0,
    )
    model = Transformer(config)
    schedule = TransformerSchedule(config.d_model, warmup_steps=300, scale=0.5)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        loss=MaskedCrossentropy(label_smoothing=0.1),
        metrics=[MaskedAccuracy()],
    )
    return model


def decode(model, source):
    """Returns the most probable token at every step, ids (B, L)."""
    result = beam_search(
        model.decode_step,
        model.start_decoding(source, LENGTH),
        beam_size=1,
        max_lengths=np.full(len(source), LENGTH, "int32"),
        limit=LENGTH,
        special_ids=SpecialIds(PAD, START, END),
    )
    return keras.ops.convert_to_numpy(result.ids)[:, 0]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rows", type=int, default=10000)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    model = make_model()
    inputs, target_out = make_data(options.rows, seed=1)
    model.fit(inputs, target_out, batch_size=64, epochs=options.epochs, verbose=2)
    (source, _), expected = make_data(200, seed=2)
    right = (decode(model, source) == expected).all(axis=1).mean()
    print(f"reversed without a mistake: {right:.1%} of 200 unseen sequences")
    return right


if __name__ == "__main__":
    main()
