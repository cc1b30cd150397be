"""Text to text: tokenizers, Transformer and search together. Needs TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import SpecialIds, beam_search
from keras_transformer.export.saved_model import check_texts, write_saved_model
from keras_transformer.files import replacing
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import TokenizerPair


class Translation(NamedTuple):
    """A translation and its score: log-probability over length penalty, nats."""

    text: str
    score: float


class Translator:
    """Translates sentences with a trained `Transformer`.

    A text is cut into pieces, searched for with `beam_search`, and joined to text
    again. On the TensorFlow backend all of it is one graph, the one that `export`
    writes; on JAX and PyTorch the text side alone runs in TensorFlow.

    A text longer than `config.max_source_length` is cut there; a text with nothing but
    spaces gives an empty translation with score 0.

    Args:
        model: A `Transformer`.
        tokenizers: A `TokenizerPair` with the model's vocabulary sizes.
        config: How to search.

    Raises:
        ValueError: If the vocabularies do not fit the model, or learned positions are
            fewer than the longest source or target.

    Example:
        >>> translator = Translator.load("runs/en-de")
        >>> translator(["Two men are talking."])
        ['Zwei Männer unterhalten sich.']
    """

    def __init__(
        self,
        model: Transformer,
        tokenizers: TokenizerPair,
        config: DecodingConfig | None = None,
    ):
        self.model = model
        self.tokenizers = tokenizers
        self.config = DecodingConfig() if config is None else config
        self._check_fit()
        self._graph = None

    def _check_fit(self):
        sizes = self.model.config
        for side, tokenizer in (
            ("source", self.tokenizers.source),
            ("target", self.tokenizers.target),
        ):
            expected = getattr(sizes, f"{side}_vocabulary_size")
            if tokenizer.vocabulary_size != expected:
                raise ValueError(
                    f"The {side} tokenizer and the model must have one vocabulary "
                    f"size. Received: {tokenizer.vocabulary_size} pieces, "
                    f"{side}_vocabulary_size={expected}"
                )
        ids = (sizes.pad_id, sizes.start_id, sizes.end_id)
        target = self.tokenizers.target
        expected = (target.pad_id, target.start_id, target.end_id)
        if ids != expected:
            raise ValueError(
                "The tokenizers and the model must have the same `pad_id`, `start_id` "
                f"and `end_id`. Received: {expected} and {ids}"
            )
        longest = self.config.max_source_length + self.config.max_extra_length
        if sizes.positions == "learned" and longest > sizes.max_positions:
            raise ValueError(
                "Learned positions must cover `max_source_length` + "
                f"`max_extra_length` tokens. Received: {longest} tokens, "
                f"max_positions={sizes.max_positions}"
            )

    @classmethod
    def load(cls, directory: str | Path, config: DecodingConfig | None = None):
        """Reads what `save` wrote, or the directory of a training run.

        Args:
            directory: Directory with model.keras, tokenizer and decoding.json.
            config: How to search; default as saved.

        Returns:
            A `Translator`.

        Raises:
            FileNotFoundError: If a part is missing.
            ValueError: If decoding.json is bad or the parts do not fit each other.
        """
        directory = Path(directory)
        for name in ("model.keras", "tokenizer", "decoding.json"):
            if not (directory / name).exists():
                raise FileNotFoundError(
                    f"{directory} holds no trained translator: {name} is missing."
                )
        model = keras.models.load_model(directory / "model.keras", compile=False)
        if config is None:
            config = DecodingConfig.load(directory / "decoding.json")
        return cls(model, TokenizerPair.load(directory / "tokenizer"), config)

    def save(self, directory: str | Path):
        """Writes model.keras, tokenizer and decoding.json, each whole or not at all."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.tokenizers.save(directory / "tokenizer")
        with replacing(directory / "decoding.json") as temporary:
            temporary.write_text(self.config.to_json(), encoding="utf-8")
        with replacing(directory / "model.keras") as temporary:
            self.model.save(temporary)

    def __call__(self, texts: Sequence[str], batch_size: int = 32) -> list[str]:
        """Translates texts.

        Args:
            texts: Sentences; longer and shorter ones may be mixed.
            batch_size: Sentences translated at a time.

        Returns:
            The best translation of each text, in order.

        Raises:
            TypeError: If `texts` is not a sequence of strings.
            ValueError: If `batch_size` is less than 1.
        """
        return [best[0].text for best in self.translate(texts, 1, batch_size)]

    def translate(
        self, texts: Sequence[str], n_best: int = 1, batch_size: int = 32
    ) -> list[list[Translation]]:
        """Translates texts, with scores and alternatives.

        Args:
            texts: Sentences; longer and shorter ones may be mixed.
            n_best: Translations of each text, at most `config.beam_size`.
            batch_size: Sentences translated at a time.

        Returns:
            For each text, in order, its `n_best` translations, best first. A search
            that finds fewer leaves out the rest; one that finds none gives an empty
            translation with score -inf. A text with nothing but spaces gives empty
            ones with score 0.

        Raises:
            TypeError: If `texts` is not a sequence of strings.
            ValueError: If `n_best` or `batch_size` is out of range.
        """
        check_texts(texts, batch_size)
        if not 1 <= n_best <= self.config.beam_size:
            raise ValueError(
                "`n_best` must be from 1 to `beam_size`. Received: "
                f"n_best={n_best}, beam_size={self.config.beam_size}"
            )
        results = [None] * len(texts)
        # Sentences of similar length together: little padding, few wasted steps.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            batch = tf.constant([texts[i] for i in places], tf.string)
            translations, scores = self._translate_batch(batch, n_best)
            for place, row, row_scores in zip(
                places, translations.numpy(), np.asarray(scores), strict=True
            ):
                results[place] = [
                    Translation(text.decode("utf-8"), float(score))
                    for text, score in zip(row, row_scores, strict=True)
                    if np.isfinite(score)
                ] or [Translation("", float("-inf"))]
        return results

    def _translate_batch(self, texts, n_best):
        if keras.backend.backend() != "tensorflow":
            return self._translate(texts, n_best)
        if self._graph is None:
            # Strings are of any number, so batches of every size share one graph.
            self._graph = tf.function(
                self._translate, reduce_retracing=True, autograph=False
            )
        return self._graph(texts, n_best)

    def _translate(self, texts, n_best):
        """Translates strings [B] to strings [B, N] with scores [B, N]."""
        source, lengths = self._tokenize(texts)
        ids, scores = self._search(source, lengths, n_best)
        ids = tf.reshape(ids, (-1, tf.shape(ids)[2]))  # (B * N, T)
        translations = self.tokenizers.target.detokenize(ids)
        translations = tf.reshape(translations, (-1, n_best))
        # Nothing in, nothing out.
        empty = (lengths <= 1)[:, None]
        return tf.where(empty, "", translations), tf.where(empty, 0.0, scores)

    def _tokenize(self, texts):
        """Strings [B] to padded ids [B, S] with the end token, and lengths [B]."""
        tokenizer = self.tokenizers.source
        pieces = tokenizer.tokenize(texts)[:, : self.config.max_source_length - 1]
        ends = tf.fill([tf.shape(texts)[0], 1], tokenizer.end_id)
        ids = tf.concat([pieces, ends], axis=1)
        return ids.to_tensor(tokenizer.pad_id), tf.cast(ids.row_lengths(), tf.int32)

    def _search(self, source, lengths, n_best):
        """Searches for translations of ids [B, S]: ids [B, N, T], scores [B, N]."""
        config, sizes = self.config, self.model.config
        in_graph = keras.backend.backend() == "tensorflow"
        if not in_graph:
            source, lengths = source.numpy(), lengths.numpy()
        # Section 6.1 of the paper: the input length + 50. An empty text needs none.
        longest = ops.where(lengths <= 1, 1, lengths + config.max_extra_length)
        limit = ops.max(longest) if in_graph else int(ops.max(longest))
        constants, state = self.model.start_decoding(source, limit)
        result = beam_search(
            lambda ids, state: self.model.decode_step(ids, state, constants),
            state,
            max_lengths=longest,
            limit=limit,
            beam_size=config.beam_size,
            n_best=n_best,
            alpha=config.length_penalty,
            special_ids=SpecialIds(sizes.pad_id, sizes.start_id, sizes.end_id),
        )
        if in_graph:
            return result.ids, result.scores
        return tuple(map(ops.convert_to_numpy, (result.ids, result.scores)))

    def export(self, path: str | Path) -> Path:
        """Writes a SavedModel that translates strings, for TensorFlow Serving.

        The signature `serving_default` takes `text`, strings [B], and returns
        `translation`, strings [B], and `score`, float32 [B]. Tokenizer and search are
        inside; nothing of this package is needed to load it.

        Args:
            path: Directory to create, such as "saved_models/en-de/1".

        Returns:
            `path`.

        Raises:
            FileExistsError: If `path` exists.
            RuntimeError: If the Keras backend is not TensorFlow.

        Example:
            >>> Translator.load("runs/en-de").export("saved_models/en-de/1")
        """
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(
                "A SavedModel is written with the TensorFlow backend. Set "
                "KERAS_BACKEND=tensorflow; model.keras files fit every backend. "
                f"Received: backend {keras.backend.backend()!r}"
            )

        def serve(text):
            translations, scores = tf.cond(
                tf.size(text) > 0,
                lambda: self._translate(text, 1),
                lambda: (tf.zeros([0, 1], tf.string), tf.zeros([0, 1])),
            )
            return {"translation": translations[:, 0], "score": scores[:, 0]}

        module = tf.Module(name="translator")
        module.weights = [weight.value for weight in self.model.weights]
        module.tokenizers = self.tokenizers
        text = tf.TensorSpec([None], tf.string, name="text")
        serving = tf.function(serve, input_signature=[text], autograph=False)
        return write_saved_model(module, {"serving_default": serving}, path)
