"""Text to text: tokenizers, model and search together. Needs TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.config.options import check_choice
from keras_transformer.decoding.sampling import check_temperature
from keras_transformer.export import FORMATS
from keras_transformer.files import replacing
from keras_transformer.generation.generator import as_graph
from keras_transformer.generation.pipeline import (
    INPUTS,
    Alignment,
    Pipeline,
    Score,
    Translation,
    check_fit,
    check_texts,
)
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.loading import load_model
from keras_transformer.models.own_model import decodable
from keras_transformer.text.tokenizer_pair import TokenizerPair


class Translator:
    """Translates sentences with a trained model.

    It cuts a text into pieces, searches for a translation with `beam_search`, and joins
    the pieces that it finds. On the TensorFlow backend this is one graph, the one that
    `export` writes; on JAX and PyTorch only the tokenizers run in TensorFlow.

    A text longer than `config.max_source_length` is cut there; a text with nothing but
    spaces gives an empty translation with score 0.

    Its methods take any number of texts, longer and shorter ones mixed, translate
    `batch_size` of them at a time, and return results in the order of the texts. A text
    that is no string is a `TypeError`; other wrong arguments are a `ValueError`.

    Args:
        model: A `Transformer`, an `Ensemble`, or any Keras model that maps `(source,
            target_in)` to logits, see `OwnModel`, which then is the attribute `model`.
        tokenizers: A `TokenizerPair` with the model's vocabulary sizes.
        config: How to search.

    Raises:
        TypeError: If `model` is no such model.
        ValueError: If the vocabularies do not fit the model, or the model has fewer
            learned positions than the longest source or target needs, or a target
            position sees a later one.

    Example:
        >>> translator = Translator.load("runs/en-de")
        >>> translator(["Two men are talking."])
        ['Zwei Männer unterhalten sich.']
    """

    def __init__(
        self, model: keras.Model, tokenizers: TokenizerPair,
        config: DecodingConfig | None = None,
    ) -> None:  # fmt: skip
        self.model = decodable(model)
        self.tokenizers = tokenizers
        self.config = DecodingConfig() if config is None else config
        check_fit(self.model, tokenizers, self.config)
        self._pipeline = Pipeline(self.model, tokenizers, self.config)
        self._functions = {}

    @classmethod
    def load(cls, directory: str | Path, config: DecodingConfig | None = None) -> Self:
        """Reads what `save` wrote, or the directory of a training run.

        Args:
            directory: Directory with model.keras, tokenizer and decoding.json.
            config: How to search; default as saved.

        Returns:
            A `Translator`.

        Raises:
            FileNotFoundError: If a part is missing.
            ValueError: If a part is damaged, claims absurd sizes, or does not fit the
                others.
        """
        directory = cls.checked_directory(directory)
        model = load_model(directory / "model.keras")
        if config is None:
            config = DecodingConfig.load(directory / "decoding.json")
        return cls(model, TokenizerPair.load(directory / "tokenizer"), config)

    @staticmethod
    def checked_directory(directory: str | Path) -> Path:
        """Returns a directory, if it has all parts that `load` reads, or raises."""
        directory = Path(directory)
        for name in ("model.keras", "tokenizer", "decoding.json"):
            if not (directory / name).exists():
                raise FileNotFoundError(
                    f"{directory} holds no trained translator: {name} is missing."
                )
        return directory

    @classmethod
    def ensemble(
        cls, members: Sequence[Translator | str | Path],
        config: DecodingConfig | None = None,
    ) -> Self:  # fmt: skip
        """Joins translators of one vocabulary: the mean of their probabilities.

        Members may differ in size. `align` gives the mean of their
        attention, `per_head` that of each.

        Args:
            members: At least two translators, or directories that `load` takes.
            config: How to search; default as the first member.

        Returns:
            A `Translator`, to be exported like any other. It cannot be saved.

        Raises:
            FileNotFoundError: If a directory holds no translator.
            ValueError: If there are too few members, or one has another tokenizer.

        Example:
            >>> Translator.ensemble(["runs/a", "runs/b"]).export("saved_models/en-de")
        """
        joined = [m if isinstance(m, Translator) else cls.load(m) for m in members]
        for number, member in enumerate(joined, start=1):
            if not member.tokenizers.same_as(joined[0].tokenizers):
                raise ValueError(
                    "The members of an ensemble must have one tokenizer. Received: "
                    f"member {number} with another than the first"
                )
        model = Ensemble([member.model for member in joined])
        return cls(model, joined[0].tokenizers, config or joined[0].config)

    def save(self, directory: str | Path) -> None:
        """Writes model.keras, the tokenizer with its digests, and decoding.json.

        Each file is written whole or not at all. An ensemble is a `ValueError`.
        """
        if isinstance(self.model, Ensemble):
            raise ValueError(
                "An ensemble is not saved: keep its members, or `export` it. Received: "
                f"an ensemble of {len(self.model.members)}"
            )
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.tokenizers.save(directory / "tokenizer")
        with replacing(directory / "decoding.json") as temporary:
            temporary.write_text(self.config.to_json(), encoding="utf-8")
        with replacing(directory / "model.keras") as temporary:
            self.model.save(temporary)
        # Last: the digests must not match before every part is written.
        self.tokenizers.save_digests(directory / "tokenizer")

    def export(
        self, path: str | Path, format: str = "saved_model", **options: Any
    ) -> Path:
        """Writes the translator for those who run it elsewhere.

        | format      | what is written                          | options             |
        |-------------|------------------------------------------|---------------------|
        | saved_model | a version for TensorFlow Serving, its    | dtype="float32",    |
        |             | model card and configuration             | run, languages      |
        | litert      | a directory that `LiteTranslator` loads  | quantize="none",    |
        |             |                                          | languages           |
        | web         | a page that translates in the browser    | quantize="int8",    |
        |             |                                          | languages,          |
        |             |                                          | litert_js           |
        | ctranslate2 | a model for CTranslate2, an engine in    | quantize="none"     |
        |             | C++                                      |                     |
        | safetensors | weights that any program reads           |                     |

        `keras_transformer.export` has each with its options: `export_saved_model`,
        `export_litert`, `export_web`, `export_ctranslate2` and `export_safetensors`.

        Args:
            path: Directory to create; of a SavedModel a version, such as
                "saved_models/en-de/1", or "saved_models/en-de" for the next one.
            format: One of the table's.
            **options: Those of the format.

        Returns:
            The directory that was written.

        Raises:
            FileExistsError: If it exists.
            TypeError: If the format has no such option.
            ValueError: If there is no such format, an option is out of range, or the
                format lacks what the model or the tokenizers have.

        Example:
            >>> translator = Translator.load("runs/en-de")
            >>> translator.export("saved_models/en-de", languages=("en", "de"))
            >>> translator.export("lite/en-de", "litert", quantize="int8")
        """
        check_choice("format", format, FORMATS)
        return FORMATS[format](self, path, **options)

    def __call__(
        self, texts: str | Sequence[str], batch_size: int = 32
    ) -> str | list[str]:
        """Returns the best translation of a text, or a list with that of each."""
        if isinstance(texts, str):
            return self([texts])[0]
        return [best[0].text for best in self.translate(texts, 1, batch_size)]

    def translate(
        self, texts: Sequence[str], n_best: int = 1, batch_size: int = 32
    ) -> list[list[Translation]]:
        """Translates texts, with scores and alternatives.

        Args:
            texts: Sentences.
            n_best: Translations of each text, at most `config.beam_size`.
            batch_size: Sentences translated at a time.

        Returns:
            For each text its `n_best` translations, best first. A search that finds
            fewer leaves out the rest; one that finds none gives an empty translation
            with score -inf. A text with nothing but spaces gives empty ones with
            score 0.
        """
        if not 1 <= n_best <= self.config.beam_size:
            raise ValueError(
                "`n_best` must be from 1 to `beam_size`. Received: "
                f"n_best={n_best}, beam_size={self.config.beam_size}"
            )
        rows = self._rows("nbest", batch_size, texts, n_best=n_best)
        return [Translation.several_from_row(row) for row in rows]

    def complete(
        self, texts: Sequence[str], prefixes: Sequence[str], batch_size: int = 32
    ) -> list[Translation]:
        """Translates texts, given how each translation begins.

        Args:
            texts: Sentences.
            prefixes: The beginning of the translation of each.
            batch_size: Sentences translated at a time.

        Returns:
            For each text, the best translation that begins with its prefix's pieces.
        """
        rows = self._rows("complete", batch_size, texts, prefixes)
        return [Translation.from_row(row) for row in rows]

    def sample(
        self, texts: Sequence[str], temperature: float = 1.0, seed: int = 0,
        batch_size: int = 32,
    ) -> list[Translation]:  # fmt: skip
        """Draws a translation of each text, with the config's `top_k` and `top_p`.

        Args:
            texts: Sentences.
            temperature: Divides the logits: 0 is greedy, higher is more diverse.
            seed: Text i is drawn with the seed `seed` + i, whatever its batch.
            batch_size: Sentences translated at a time.

        Returns:
            A translation of each text; its score is the model's, without temperature.
        """
        check_temperature(temperature)
        temperatures = np.full(len(texts), temperature, "float32")
        seeds = np.arange(seed, seed + len(texts), dtype="int64")
        rows = self._rows("sample", batch_size, texts, temperatures, seeds)
        return [Translation.from_row(row) for row in rows]

    def score(
        self, sources: Sequence[str], targets: Sequence[str], batch_size: int = 32
    ) -> list[Score]:
        """Scores given translations.

        Args:
            sources: Sentences.
            targets: A translation of each.
            batch_size: Sentences scored at a time.

        Returns:
            The `Score` of each pair.
        """
        rows = self._rows("score", batch_size, sources, targets)
        return [Score.from_row(row) for row in rows]

    def align(
        self, texts: Sequence[str], per_head: bool = False, batch_size: int = 32
    ) -> list[Alignment]:
        """Translates texts and tells what each output token attended to.

        Args:
            texts: Sentences.
            per_head: Whether to give the attention of every head, not their mean.
            batch_size: Sentences translated at a time.

        Returns:
            The `Alignment` of each text.
        """
        rows = self._rows("align", batch_size, texts, per_head=per_head)
        return [Alignment.from_row(row) for row in rows]

    def _rows(self, name, batch_size, *columns, **options):
        """Runs a function of the pipeline; returns the outputs of each text."""
        for column in columns:
            if not isinstance(column, np.ndarray):
                check_texts(column, batch_size)
            if len(column) != len(columns[0]):
                raise ValueError(
                    "All inputs must have the same number of texts. Received: "
                    f"{', '.join(str(len(column)) for column in columns)}"
                )
        variant = (name, *options.items())
        if variant not in self._functions:  # On TensorFlow a graph.
            function = functools.partial(self._pipeline.run, name, **options)
            self._functions[variant] = as_graph(function, INPUTS[name].values())
        rows = [None] * len(columns[0])
        # Sentences of similar length together: little padding, few wasted steps.
        order = sorted(range(len(rows)), key=lambda i: len(columns[0][i]))
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            inputs = [
                tf.constant([column[i] for i in places], spec.dtype)
                for column, spec in zip(columns, INPUTS[name].values(), strict=True)
            ]
            outputs = self._functions[variant](*inputs)
            outputs = {key: value.numpy() for key, value in outputs.items()}
            for i, place in enumerate(places):
                rows[place] = {key: value[i] for key, value in outputs.items()}
        return rows
