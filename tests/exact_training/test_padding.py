"""A model and its losses and metrics must mean the same id by padding."""

from __future__ import annotations

import numpy as np
import pytest

from keras_transformer import (
    Encoder,
    EncoderConfig,
    LanguageModel,
    LanguageModelConfig,
    MaskedAccuracy,
    MaskedCrossentropy,
    Perplexity,
    PositionalEmbedding,
    Tagger,
    Transformer,
    TransformerConfig,
)

IDS = {"pad_id": 1, "start_id": 0, "end_id": 2}
SIZES = {
    "source_vocabulary_size": 11,
    "target_vocabulary_size": 11,
    "d_model": 6,
    "unknown_id": 3,
} | IDS
LAYERS = {"d_ff": 8, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}


def transformer(kind=Transformer):
    return kind(TransformerConfig(**SIZES, **LAYERS))


def language_model():
    config = LanguageModelConfig(
        vocabulary_size=11, num_layers=1, d_model=6, d_ff=8, num_heads=2, **IDS
    )
    return LanguageModel(config)


RIGHT = MaskedCrossentropy(pad_id=1)
OTHERS = {
    "loss": {"loss": MaskedCrossentropy()},
    "loss in a list": {"loss": [MaskedCrossentropy()]},
    "loss in a dict": {"loss": {"logits": MaskedCrossentropy()}},
    "metric": {"loss": RIGHT, "metrics": [MaskedAccuracy(1), Perplexity()]},
    "metrics in a list": {"loss": RIGHT, "metrics": [["accuracy", MaskedAccuracy()]]},
    "metrics in a dict": {"loss": RIGHT, "metrics": {"logits": [MaskedAccuracy()]}},
    "weighted metric": {"loss": RIGHT, "weighted_metrics": [Perplexity()]},
}


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_another_id_for_padding_is_refused(options):
    message = r"`pad_id` of .* must be the model's, 1\. Received: \w+\(pad_id=0\)"
    with pytest.raises(ValueError, match=message):
        transformer().compile("sgd", **options)


@pytest.mark.parametrize("make", [transformer, language_model])
def test_every_model_that_knows_the_padding_of_its_targets_says_so(make):
    model = make()
    metrics = [MaskedAccuracy(1), Perplexity(1), "accuracy"]
    model.compile("sgd", RIGHT, metrics=metrics, weighted_metrics=[Perplexity(1)])
    with pytest.raises(ValueError, match="must be the model's, 1"):
        model.compile("sgd", MaskedCrossentropy())


def test_losses_that_leave_out_no_padding_are_the_users_choice():
    transformer().compile("sgd", "sparse_categorical_crossentropy", metrics=["acc"])
    transformer().compile("sgd", lambda targets, logits: 0.0)


def test_labels_that_are_no_ids_have_padding_of_their_own():
    config = EncoderConfig(num_layers=1, d_model=6, d_ff=8, num_heads=2)
    embedding = PositionalEmbedding(11, config.d_model, pad_id=1)
    tagger = Tagger(Encoder(config, embedding), num_tags=5)
    tagger.compile("sgd", MaskedCrossentropy(), metrics=[MaskedAccuracy()])


def test_padding_is_left_out_of_the_figures():
    model = transformer()
    model.compile("sgd", RIGHT, metrics=[MaskedAccuracy(1)])
    rng = np.random.default_rng(3)
    source, target = rng.integers(4, 11, (5, 3)), rng.integers(4, 11, (5, 7))
    before = model.evaluate((source, target), target, verbose=0)
    more = np.pad(target, ((0, 0), (0, 6)), constant_values=1)
    after = model.evaluate((source, more), more, verbose=0)
    np.testing.assert_allclose(after, before, rtol=1e-5)
