"""Small recurrent translators with random weights, for the tests of the model."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_transformer.config import RecurrentConfig
from keras_transformer.models.recurrent_seq2seq import RecurrentSeq2Seq
from tests.layers.reference_weights import randomise

# Every size another prime, so that no two axes can be taken for each other.
SIZES = {
    "source_vocabulary_size": 29,
    "target_vocabulary_size": 29,
    "d_model": 17,
    "units": 11,
    "attention_units": 13,
}
# Dropout stays configured (0.1): it must not matter outside training.
VARIANTS = {
    "bidirectional, three-way": {},
    "two layers, two-way": {
        "num_encoder_layers": 2,
        "tied_embeddings": "two-way",
        "source_vocabulary_size": 31,
    },
    "forward alone, two and three layers, untied": {
        "num_encoder_layers": 2,
        "num_decoder_layers": 3,
        "bidirectional": False,
        "tied_embeddings": "none",
        "source_vocabulary_size": 31,
    },
    "LSTM": {"cell": "lstm"},
    "LSTM, two and three layers": {
        "cell": "lstm",
        "num_encoder_layers": 2,
        "num_decoder_layers": 3,
    },
}


def random_model(rng, **options):
    """A `RecurrentSeq2Seq` with every weight random, biases too."""
    return randomise(RecurrentSeq2Seq(RecurrentConfig(**(SIZES | options))), rng)


def weights_of(model):
    """Float64 weights, as `numpy_recurrent.recurrent` wants them."""

    def array(variable):
        return ops.convert_to_numpy(variable).astype(np.float64)

    def arrays(layer, *names):
        return {name: array(getattr(layer, name)) for name in names}

    def cell_weights(cell):
        return arrays(cell, "kernel", "recurrent_kernel", "bias")

    tied = model.config.tied_embeddings != "none"
    target = array(model.target_embedding.embeddings)
    return {
        "source_embeddings": array(model.source_embedding.embeddings),
        "target_embeddings": target,
        "output_embeddings": target if tied else array(model.output_kernel).T,
        "forward": [cell_weights(layer.cell) for layer in model.forward_layers],
        "backward": [cell_weights(layer.cell) for layer in model.backward_layers],
        "initial": arrays(model.initial_state, "kernel", "bias"),
        "readout": arrays(model.readout, "kernel", "bias"),
        "attention": arrays(
            model.cross_attention, "query_kernel", "key_kernel", "score_kernel"
        ),
        "cells": [
            cell_weights(cell)
            for cell in (model.decoder_cell, *model.upper_decoder_cells)
        ],
    }
