"""Translation of text to text. Needs TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import keras

from keras_transformer.config import DecodingConfig
from keras_transformer.config.options import check_choice
from keras_transformer.files import replacing, write_json
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.loading import load_model
from keras_transformer.models.own_model import OwnModel
from keras_transformer.search.compiled import MOST_KEPT, as_graph, identity_of
from keras_transformer.search.generator import Generator
from keras_transformer.search.run_directory import trained_directory
from keras_transformer.search.shortlist import Shortlist
from keras_transformer.search.string_search import StringSearch
from keras_transformer.search.strings import SIGNATURES, as_arrays
from keras_transformer.search.translation import TextTranslator
from keras_transformer.text.tokenizer_pair import TokenizerPair


class Translator(TextTranslator):
    """Translates sentences with a trained model.

    On the TensorFlow backend translation is one graph, which `export` writes; on JAX
    and PyTorch only the tokenizers run in TensorFlow. The methods of `TextTranslator`
    return results in the order of the texts. A call and `translate` take texts of any
    length; the others cut a sentence longer than `config.max_source_length`. An empty
    text has an empty translation with score 0.

    Args:
        model: A `Transformer`, an `Ensemble`, or any Keras model that a `Generator`
            takes.
        tokenizers: A `TokenizerPair` with the model's vocabulary sizes.
        config: Options of decoding.
        shortlist: A `Shortlist` of the pieces that a search scores; default all.

    Raises:
        TypeError: If `model` is not such a model.
        ValueError: If the vocabularies do not fit the model, there are fewer learned
            positions than the longest source or target, a target position sees a
            later one, or a model with your own classes decodes otherwise than it is
            trained.

    Example:
        >>> translator = load("runs/en-de")
        >>> translator(["Two men are talking."])
        ['Zwei Männer unterhalten sich.']
    """

    def __init__(
        self,
        model: keras.Model,
        tokenizers: TokenizerPair,
        config: DecodingConfig | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        config = DecodingConfig() if config is None else config
        self.tokenizers = tokenizers
        self.generator = Generator(model, config, shortlist=shortlist)
        _check_fit(self.generator.searchable, tokenizers, config)
        self.most = config.beam_size
        self.carries_spans = tokenizers.carry_spans
        self._search = StringSearch(self.generator, tokenizers)
        # The graph of a signature for some options. A quantised model has other
        # variables, so it gets a graph anew.
        self._graphs = functools.lru_cache(MOST_KEPT)(
            lambda name, variables, **options: as_graph(
                functools.partial(SIGNATURES[name].call, self._search, **options),
                SIGNATURES[name].inputs,
            )
        )

    @property
    def model(self) -> keras.Model:
        """The model that was given."""
        return self.generator.model

    @property
    def config(self) -> DecodingConfig:
        """The options of decoding."""
        return self.generator.config

    @property
    def shortlist(self) -> Shortlist | None:
        """The pieces that a search scores."""
        return self.generator.shortlist

    def __repr__(self):
        kind = type(self.model).__name__
        size = self.model.count_params()
        return f"<Translator: {kind} of {size:,} parameters, {self.tokenizers!r}>"

    def run(self, name: str, *columns: Any, **options: Any) -> dict[str, Any]:
        """Returns the outputs of a signature for lists of inputs.

        On TensorFlow it is one graph.
        """
        variables = None
        if keras.backend.backend() == "tensorflow":
            variables = identity_of(self.model.variables)
        graph = self._graphs(name, variables, **options)
        return as_arrays(graph(*SIGNATURES[name].tensors(columns).values()))

    @classmethod
    def load(cls, directory: str | Path, config: DecodingConfig | None = None) -> Self:
        """Loads a translator from the directory of `save` or of a training run.

        Args:
            directory: Directory with model.keras, tokenizer and decoding.json.
            config: Options of decoding; default as saved.

        Raises:
            FileNotFoundError: If a part is missing.
            ValueError: If a part is damaged or does not fit the others.
        """
        directory = trained_directory(directory)
        model = load_model(directory / "model.keras")
        if config is None:
            config = DecodingConfig.load(directory / "decoding.json")
        return cls(model, TokenizerPair.load(directory / "tokenizer"), config)

    @classmethod
    def ensemble(
        cls,
        members: Sequence[Translator | str | Path],
        config: DecodingConfig | None = None,
    ) -> Self:
        """Returns a translator that averages the probabilities of several.

        Members may differ in size. `align` returns the mean of their attention,
        `per_head` that of each.

        Args:
            members: Two or more translators, or directories that `load` takes.
            config: Options of decoding; default those of the first member.

        Returns:
            A `Translator`, which can be exported but not saved.

        Raises:
            FileNotFoundError: If a directory has no translator.
            ValueError: If there are too few members, or they have different tokenizers.

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
        """Writes model.keras, tokenizer/ and decoding.json.

        Each file is written whole or not at all. Raises `ValueError` for an ensemble.
        """
        if isinstance(self.model, Ensemble):
            raise ValueError(
                "An ensemble cannot be saved: export it or save its members. Received: "
                f"an ensemble of {len(self.model.members)}"
            )
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.tokenizers.save(directory / "tokenizer")
        write_json(directory / "decoding.json", self.config.to_dict())
        with replacing(directory / "model.keras") as temporary:
            self.model.save(temporary)

    def export(
        self, path: str | Path, format: str = "saved_model", **options: Any
    ) -> Path:
        """Exports the translator for use elsewhere.

        | format      | what is written                          | options             |
        |-------------|------------------------------------------|---------------------|
        | saved_model | a version for TensorFlow Serving, its    | dtype="float32",    |
        |             | model card and configuration             | run, no_examples,   |
        |             |                                          | languages           |
        | litert      | a directory that `LiteTranslator` loads  | quantize="none",    |
        |             |                                          | languages,          |
        |             |                                          | fixed_lengths       |
        | onnx        | the same, for ONNX Runtime               | quantize="none",    |
        |             |                                          | languages           |
        | web         | a page that translates in the browser    | quantize="int8",    |
        |             |                                          | languages,          |
        |             |                                          | litert_js, run,     |
        |             |                                          | no_examples         |
        | ctranslate2 | a model for CTranslate2, an engine in    | quantize="none"     |
        |             | C++                                      |                     |
        | safetensors | weights that any program reads           |                     |

        The functions `export_saved_model`, `export_litert`, `export_onnx`,
        `export_web`, `export_ctranslate2` and `export_safetensors` of
        `keras_transformer.formats` document the options.

        Args:
            path: Directory to create; for a SavedModel a version, such as
                "saved_models/en-de/1", or "saved_models/en-de" for the next version.
            format: A format of the table.
            **options: Options of the format.

        Returns:
            The directory that was written.

        Raises:
            FileExistsError: If it exists.
            TypeError: If the format has no such option.
            ValueError: If the format is unknown, an option is out of range, or the
                format does not support the model or the tokenizers.

        Example:
            >>> translator = load("runs/en-de")
            >>> translator.export("saved_models/en-de", languages=("en", "de"))
            >>> translator.export("lite/en-de", "litert", quantize="int8")
        """
        # The only import upwards: what is written depends on what a translator is.
        from keras_transformer.formats.exporters import EXPORTERS

        check_choice("format", format, EXPORTERS)
        return EXPORTERS[format](self, path, **options)


def _check_fit(model, tokenizers, config):
    """Raises `ValueError` unless model, tokenizers and options fit together."""
    if isinstance(model, OwnModel) and model.features is not None:
        raise ValueError(
            "The sources of `model` must be ids: a `Generator` takes others. Received: "
            f"{model.name!r}, of sources with {model.features} features"
        )
    sizes = model.config
    for side in ("source", "target"):
        pieces = getattr(tokenizers, side).vocabulary_size
        expected = getattr(sizes, f"{side}_vocabulary_size")
        if expected not in (None, pieces):
            raise ValueError(
                f"The {side} tokenizer and the model must have the same vocabulary "
                f"size. Received: {pieces} pieces, {side}_vocabulary_size={expected}"
            )
    ids = (sizes.pad_id, sizes.start_id, sizes.end_id)
    target = tokenizers.target
    expected = (target.pad_id, target.start_id, target.end_id)
    if ids != expected:
        raise ValueError(
            "The tokenizers and the model must have the same `pad_id`, `start_id` "
            f"and `end_id`. Received: {expected} and {ids}"
        )
    layer = config.alignment_layer
    layers = sizes.num_decoder_layers
    if layers and not -layers <= layer < layers:
        raise ValueError(
            f"`alignment_layer` must be from {-layers} to {layers - 1}. "
            f"Received: alignment_layer={layer}"
        )
    longest = max(config.max_source_length, config.longest_output)
    sizes.check_positions(longest, "`max_source_length` + `max_extra_length`")
