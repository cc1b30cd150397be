"""What is read of KerasHub's tokenizers is told when it has moved."""

import keras_hub
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.text import keras_hub_private
from tests.nn.kernels.test_keras_private import tell_what_has_moved
from tests.text.test_tokenizer import ENGLISH, byte_pairs, word_pieces


def in_graph(call, *texts):
    return tf.function(call, autograph=False)(tf.constant(texts))


def joins():
    words = word_pieces()
    told = [keras_hub_private.joins_words_by_spaces(x) for x in (words, byte_pairs())]
    texts = in_graph(lambda x: words.detokenize(words.tokenize(x)), "men. men.")
    return told == [True, False] and texts.numpy().tolist() == [b"men . men ."]


def makes_tables():
    counts = []
    for tokenizer in (word_pieces(), byte_pairs()):
        keras_hub_private.make_tables(tokenizer)
        counts.append(len(keras_hub_private.tables_of(tokenizer)))
        tokenizer.tokenize(["Two men."])
        counts.append(len(keras_hub_private.tables_of(tokenizer)))
    words_before, words_after, pairs_before, pairs_after = counts
    return words_before == words_after and pairs_before == pairs_after > 0


def omits():
    kept = word_pieces(split_on_cjk=False)
    options = keras_hub_private.omitted_options(kept)
    return options == {"split_on_cjk": False} and not options.keys() & kept.get_config()


def ragged():
    long = word_pieces(sequence_length=5)
    told = [keras_hub_private.is_ragged(x) for x in (word_pieces(), byte_pairs(), long)]
    returned = [
        isinstance(in_graph(x.tokenize, "Two"), tf.RaggedTensor)
        for x in (word_pieces(), long)
    ]
    return told == [True, True, False] and returned == [True, False]


def unknown():
    kinds = (word_pieces(oov_token="[UNK]"), byte_pairs())
    return [keras_hub_private.unknown_token(x) for x in kinds] == ["[UNK]", None]


def holds_a_model():
    config = kt.TokenizerConfig(vocabulary_size=300)
    content = kt.Tokenizer.learn(ENGLISH, config).content
    given = keras_hub.tokenizers.SentencePieceTokenizer(content)
    return keras_hub_private.sentencepiece_model(given) == content


CHECKS = {
    "make_tables": makes_tables,
    "tables_of": makes_tables,
    "omitted_options": omits,
    "joins_words_by_spaces": joins,
    "is_ragged": ragged,
    "unknown_token": unknown,
    "sentencepiece_model": holds_a_model,
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_name_that_has_moved_is_told(name):
    tell_what_has_moved(keras_hub_private, name, CHECKS[name])
