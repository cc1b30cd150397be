"""Writes the models of random weights that `peers/ours.py` and `lite.py` load.

Every piece of the vocabulary is a word, so that a sentence of 29 words has exactly 30
tokens with its end, and the words of a translation tell how many tokens were decoded.

    python benchmarks/export_ours.py base float32 exports/base-float32
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import keras
import sentencepiece
from workload import (
    END_ID,
    PAD_ID,
    SIZES,
    SOURCE_LENGTH,
    START_ID,
    TARGET_LENGTH,
    UNKNOWN_ID,
    word,
)

from keras_transformer import (
    DecodingConfig,
    TokenizerConfig,
    Transformer,
    TransformerConfig,
    Translator,
)
from keras_transformer.text import Tokenizer, TokenizerPair

BEAMS = (1, 4)


def tokenizers(vocabulary_size: int) -> TokenizerPair:
    """A joint vocabulary of `vocabulary_size` pieces, each a word (`workload.word`)."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=map(word, range(UNKNOWN_ID + 1, vocabulary_size)),
        model_writer=model,
        model_type="word",
        vocab_size=vocabulary_size,
        pad_id=PAD_ID,
        bos_id=START_ID,
        eos_id=END_ID,
        unk_id=UNKNOWN_ID,
        minloglevel=2,
    )
    tokenizer = Tokenizer(model.getvalue())
    config = TokenizerConfig(vocabulary_size=vocabulary_size)
    return TokenizerPair(tokenizer, tokenizer, config)


def export(size_name: str, variant: str, folder: Path):
    """Writes one export a beam size: `folder`/beam1/1 and `folder`/beam4/1.

    Args:
        size_name: A key of `SIZES`, which is a preset of the package too.
        variant: "float32", "bfloat16", or "litert-" or "onnx-" and a way to quantise.
        folder: Directory to write to.

    Raises:
        ValueError: If the preset has other sizes than the peers.
    """
    vocabulary_size = SIZES[size_name].vocabulary_size
    dtype, _, way = variant.partition("-")
    config = TransformerConfig.preset(
        size_name,
        source_vocabulary_size=vocabulary_size,
        target_vocabulary_size=vocabulary_size,
    )
    _check_sizes(config, size_name)
    keras.utils.set_random_seed(3)
    model = Transformer(config)
    pair = tokenizers(vocabulary_size)
    for beam in BEAMS:
        decoding = DecodingConfig(
            beam_size=beam,
            min_output_length=TARGET_LENGTH,
            max_output_length=TARGET_LENGTH,
            max_source_length=SOURCE_LENGTH,
        )
        translator, path = Translator(model, pair, decoding), folder / f"beam{beam}/1"
        if way:
            translator.export(path, dtype, quantize=way)
        else:
            translator.export(path, dtype=dtype)


def _check_sizes(config, size_name):
    size = SIZES[size_name]
    ours = (
        config.num_encoder_layers,
        config.num_decoder_layers,
        config.d_model,
        config.d_ff,
        config.num_heads,
    )
    theirs = (size.num_layers, size.num_layers, size.d_model, size.d_ff, size.num_heads)
    if ours != theirs:
        raise ValueError(
            f"The preset {size_name!r} must have the sizes of the peers: {theirs}. "
            f"Received: {ours}"
        )


def main():
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("variant", help="float32, bfloat16, litert-int8, onnx-int8")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    export(arguments.size, arguments.variant, arguments.folder)


if __name__ == "__main__":
    main()
