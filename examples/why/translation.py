"""A small translator of words: what some programs of this folder train and score."""

import corpora
import keras
import numpy as np
import sacrebleu

import keras_transformer as kt


def make_model(corpus, model_class=kt.Transformer, dropout=0.1, **options):
    """Returns a pre-norm Transformer of 2 + 2 layers of width 64, one vocabulary.

    Args:
        corpus: A `Corpus`.
        model_class: `Transformer` or a subclass.
        dropout: Rate of the paper's dropout, of sub-layers and embeddings.
        **options: Options of `TransformerConfig` that replace these.
    """
    size = corpora.UNKNOWN + 1 + len(corpus.numbers)
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64}
    names = ("source_vocabulary_size", "target_vocabulary_size")
    sizes |= {"d_ff": 128, "num_heads": 4, "norm_first": True}
    sizes |= dict.fromkeys(names, size) | {"dropout_rate": dropout}
    sizes |= {"attention_dropout_rate": 0.0, "activation_dropout_rate": 0.0}
    return model_class(kt.TransformerConfig(**(sizes | options)))


def fit(model, corpus, updates, smoothing=0.1, rows=64, length=corpora.LONGEST):
    """Trains with Adam and the paper's schedule, a batch of `rows` pairs each time."""
    warmup, width = max(1, updates // 5), model.config.d_model
    rate = kt.TransformerSchedule(width, warmup, 3e-3 * (width * warmup) ** 0.5)
    adam = kt.Adam(rate, beta_2=0.98, epsilon=1e-9)
    metrics = [kt.Perplexity(), kt.MaskedAccuracy()]
    is_jax = keras.backend.backend() == "jax"  # Elsewhere XLA would cost more time.
    loss = kt.MaskedCrossentropy(smoothing)
    model.compile(adam, loss, metrics=metrics, jit_compile=is_jax)
    order = np.random.default_rng(1).integers(0, len(corpus.train), rows * updates)
    (source, target_in), target_out = corpora.arrays(
        corpus.train, corpus.numbers, length
    )
    inputs = source[order], target_in[order]
    model.fit(inputs, target_out[order], rows, verbose=0)


def forced(model, pairs, corpus, length=corpora.LONGEST):
    """Returns perplexity and accuracy of each token after the right ones before it."""
    data = corpora.arrays(pairs, corpus.numbers, length)
    found = model.evaluate(*data, 64, verbose=0, return_dict=True)
    return found["perplexity"], found["masked_accuracy"]


def translate(model, pairs, corpus, length=corpora.LONGEST):
    """Returns greedy translations of the sources, each a text of its tokens."""
    (source, _), _ = corpora.arrays(pairs, corpus.numbers, length)
    ids = kt.beam_search(
        model.decode_step,
        model.start_decoding(source, length),
        beam_size=1,
        max_lengths=np.full(len(pairs), length, "int32"),
        limit=length,
        special_ids=kt.SpecialIds(corpora.PAD, corpora.START, corpora.END),
    ).ids
    rows = keras.ops.convert_to_numpy(ids)[:, 0].tolist()
    return [corpora.text_of(row, corpus.numbers) for row in rows]


def bleu(texts, pairs):
    """Returns sacreBLEU's score by the tokens, of which an unknown is never right."""
    references = [[" ".join(target) for _, target in pairs]]
    return sacrebleu.corpus_bleu(texts, references, tokenize="none", force=True)
