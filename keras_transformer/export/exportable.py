"""What a translator can be written as, for those who run it elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import DecodingConfig
from keras_transformer.export.ctranslate2 import export_ctranslate2
from keras_transformer.export.litert import export_litert
from keras_transformer.export.litert_serving import export_litert_serving
from keras_transformer.export.model_card import Subject, model_card
from keras_transformer.export.run_facts import RunFacts
from keras_transformer.export.safetensors import export_safetensors
from keras_transformer.export.serving_files import model_name
from keras_transformer.export.translator import export_translator
from keras_transformer.export.web import export_web
from keras_transformer.files import version_path
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.text.tokenizer_pair import TokenizerPair


class Exportable:
    """The half of `Translator` that writes it in the formats of other programs.

    Attributes:
        model: A `Transformer`, or another `Seq2Seq`.
        tokenizers: A `TokenizerPair` with its vocabulary sizes.
        config: How to search.
    """

    model: Seq2Seq
    tokenizers: TokenizerPair
    config: DecodingConfig

    def export(
        self, path: str | Path, dtype: str = "float32", jit_compile: bool = False,
        run: str | Path | RunFacts | None = None,
        languages: Sequence[str] | None = None, *,
        format: str = "saved_model", **options: Any,
    ) -> Path:  # fmt: skip
        """Writes a SavedModel that translates strings, for TensorFlow Serving.

        Tokenizers and search are inside; nothing of this package is needed to load it.
        `export_translator` lists its signatures. The version's README.md is the
        `model_card`; a later export never changes it. What is known of the data is in
        its assets.extra/training_data.json.

        Args:
            path: Directory of a version to create, such as "saved_models/en-de/1"; or
                of the model, "saved_models/en-de", where the next version is created.
            dtype: "float32", or "bfloat16" for half the memory, and more speed on
                processors that support it.
            jit_compile: Whether XLA compiles the search. It runs faster, but the first
                request of every new shape takes many seconds more. TensorFlow Serving
                refuses such a model unless it is started with
                `--xla_cpu_compilation_enabled`.
            run: Directory of the training run that this translator was loaded from,
                for what the card says of data, training and scores; or a `RunFacts`
                with what is known of a run that goes on; or `None`.
            languages: Codes of source and target language, for the card, or `None`.
            format: "saved_model", or that of another method.
            **options: Arguments of that method.

        Returns:
            The directory of the version.

        Raises:
            FileExistsError: If it exists.
            RuntimeError: If the Keras backend is not TensorFlow.
            ValueError: If `dtype` is any other, or a tokenizer has no form in a graph.

        Example:
            >>> Translator.load("runs/en-de").export("saved_models/en-de/1")
        """
        if format != "saved_model":
            if languages is not None:
                options["languages"] = languages
            return getattr(self, f"export_{format}")(path, **options)
        path = version_path(path, "saved_model.pb")
        subject = {"name": model_name(path), "version": path.name, "dtype": dtype}
        card = self.model_card(run, languages, **subject)
        return export_translator(
            self.model, self.tokenizers, self.config, path, dtype, jit_compile, card,
            _facts(run).training_data(),
        )  # fmt: skip

    def model_card(
        self, run: str | Path | RunFacts | None = None,
        languages: Sequence[str] | None = None, **subject: Any,
    ) -> str:  # fmt: skip
        """Returns what people should know of the model, as model hubs read it.

        YAML, then Markdown: how to use it, signatures, sizes, and of a run its data,
        training, scores and examples. What is not known is left to fill in.

        Args:
            run: Directory of the training run that this translator was loaded from, or
                a `RunFacts` with what is known of one, or `None`. If no `evaluate` is
                recorded there, sentences of its validation data are translated for the
                examples.
            languages: Codes of source and target language, such as en and de, or
                `None`.
            **subject: `name` of the model (default that of the run's directory),
                `version` and `dtype` of an export.

        Returns:
            The text.

        Raises:
            FileNotFoundError: If `run` holds no trained model.
            ValueError: If a file of the run is damaged, or the languages are not two.

        Example:
            >>> card = Translator.load("runs/en-de").model_card("runs/en-de")
        """
        if languages is not None and len(languages) != 2:
            raise ValueError(
                "`languages` must be two codes, such as en and de. Received: "
                f"{languages!r}"
            )
        facts = _facts(run)
        of_directory = isinstance(run, (str, os.PathLike))
        name = Path(os.path.abspath(run)).name if of_directory else "translator"
        members = getattr(self.model, "members", [self.model])
        described = Subject(
            **({"name": name} | subject),
            kind=type(self.model).__name__,
            parameters=sum(member.count_params() for member in members),
            sizes=[member.config for member in members],
            search=self.config,
            languages=languages,
        )
        try:
            return model_card(described._replace(examples=self._examples(facts)), facts)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if not of_directory:
                raise
            raise ValueError(
                f"The summary.json or scores.json of {run} is damaged: remove it"
            ) from error

    def _examples(self, facts):
        """Translates the sentences that a run kept, unless a test set's are there."""
        pairs = (facts.summary or {}).get("examples") or ()
        if facts.scores or not pairs:
            return ()
        translations = self([source for source, _ in pairs])
        return [
            (source, translation, reference)
            for (source, reference), translation in zip(
                pairs, translations, strict=True
            )
        ]

    def export_litert(
        self, path: str | Path, quantize: str = "none",
        languages: Sequence[str] | None = None, scores: dict | None = None,
    ) -> Path:  # fmt: skip
        """Writes a directory that translates with LiteRT, without TensorFlow.

        `LiteTranslator` loads it; `export.litert.export_litert` lists what is in it.

        Args:
            path: Directory to create, such as "lite/en-de".
            quantize: "none"; "float16" for half the size; or "int8" for a quarter of
                the size and more speed.
            languages: Codes of source and target language, for clients, or `None`.
            scores: Scores of the training run, for clients, or `None`.

        Returns:
            `path`.

        Raises:
            FileExistsError: If `path` exists.
            RuntimeError: If the Keras backend is not TensorFlow.
            ValueError: If an argument is out of range, or LiteRT lacks an operation.

        Example:
            >>> path = Translator.load("runs/en-de").export_litert("lite/en-de", "int8")
            >>> LiteTranslator(path)(["Two men are talking."])
            ['Zwei Männer unterhalten sich.']
        """
        return export_litert(
            self.model, self.tokenizers, self.config, path, quantize, languages, scores
        )

    def export_litert_serving(
        self, path: str | Path, quantize: str = "none",
        languages: Sequence[str] | None = None, scores: dict | None = None,
    ) -> Path:  # fmt: skip
        """Writes a LiteRT file for TensorFlow Serving: ids in, ids out.

        Written after reading TensorFlow Serving's sources, and never run in it; its
        flag for such files is experimental. `export.litert_serving` tells more.

        Args:
            path: Directory of a version to create, such as "litert_models/en-de/1"; or
                of the model, "litert_models/en-de", where the next version is created.
            quantize: As for `export_litert`.
            languages: Codes of source and target language, for clients, or `None`.
            scores: Scores of the training run, for clients, or `None`.

        Returns:
            The directory of the version.

        Raises:
            FileExistsError: If it exists.
            RuntimeError: If the Keras backend is not TensorFlow.
            ValueError: If an argument is out of range, or LiteRT lacks an operation.

        Example:
            >>> translator = Translator.load("runs/en-de")
            >>> translator.export_litert_serving("litert_models/en-de/1", "int8")
        """
        return export_litert_serving(
            self.model, self.tokenizers, self.config, path, quantize, languages, scores
        )

    def export_web(
        self, path: str | Path, quantize: str = "int8",
        languages: Sequence[str] | None = None, scores: dict | None = None,
        litert_js: str | Path | None = None,
    ) -> Path:  # fmt: skip
        """Writes a folder that any web server serves: it translates in the browser.

        Nothing that is typed leaves the browser, and after the first visit the page
        works offline. `export.web.export_web` tells what is in it.

        Args:
            path: Directory to create, such as "site".
            quantize: "none"; "float16" for half the download; or "int8" for a quarter
                of it and more speed.
            languages: Codes of source and target language, shown by the page, or
                `None`.
            scores: Scores of the training run for translator.json, or `None`.
            litert_js: A node_modules folder with @litertjs/core, which is copied; or
                `None` to load it from a public server at the first visit.

        Returns:
            `path`.

        Raises:
            FileExistsError: If `path` exists.
            FileNotFoundError: If `litert_js` lacks a file of LiteRT.js.
            RuntimeError: If the Keras backend is not TensorFlow.
            ValueError: If an argument is out of range, or LiteRT lacks an operation.

        Example:
            >>> Translator.load("runs/en-de").export_web("site", languages=("en", "de"))
        """
        return export_web(
            self.model, self.tokenizers, self.config, path, quantize, languages, scores,
            litert_js,
        )  # fmt: skip

    def export_ctranslate2(self, path: str | Path, quantize: str = "none") -> Path:
        """Writes a directory that CTranslate2 loads, an engine in C++.

        The other half of the way is in `docs/other_systems.md`: how its search is
        given the options of this one.

        Args:
            path: Directory to create, such as "ctranslate2/en-de".
            quantize: "none"; "float16" for half the size; or "int8" for a quarter.

        Returns:
            `path`.

        Raises:
            FileExistsError: If `path` exists.
            ImportError: If ctranslate2 is not installed.
            ValueError: If `quantize` is unknown, or the model has what CTranslate2
                lacks.

        Example:
            >>> Translator.load("runs/en-de").export_ctranslate2("ctranslate2/en-de")
        """
        return export_ctranslate2(
            self.model, self.tokenizers, self.config, path, quantize
        )

    def export_safetensors(self, path: str | Path) -> Path:
        """Writes the weights as named tensors that any program reads, without code.

        Args:
            path: Directory to create; it gets model.safetensors, with the model's sizes
                in its metadata, and tokenizer.

        Returns:
            `path`.

        Raises:
            FileExistsError: If `path` exists.
            ImportError: If safetensors is not installed.
            ValueError: If the model is quantised or has adapters.

        Example:
            >>> Translator.load("runs/en-de").export_safetensors("weights/en-de")
        """
        return export_safetensors(self.model, self.tokenizers, self.config, path)


def _facts(run):
    """What is known of a run: of its directory, or given."""
    if isinstance(run, RunFacts):
        return run
    return RunFacts() if run is None else RunFacts.read(run)
