"""What the page asks for: JSON objects, checked; errors tell the page's reader why."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Self

from keras_transformer.serving.errors import bad_request

MOST_TRANSLATIONS = 10
MOST_HYPOTHESES = 16
HIGHEST_TEMPERATURE = 10.0
_MOST_TOKENS = 10_000
_LARGEST_ID = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class _Question:
    """What all questions have."""

    model: int  # which of the models, from 0
    text: str

    @classmethod
    def read(cls, document: dict[str, Any], longest: int) -> Self:
        """Returns a question.

        Args:
            document: The JSON object of a request.
            longest: Longest text (characters).

        Raises:
            RequestError: If a name is not known or missing, or a value is out of its
                range (status 400).
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in document:
            if name not in fields:
                raise bad_request(f"There is no option {name!r:.50}.")
        for name, field in fields.items():
            if name not in document and field.default is dataclasses.MISSING:
                raise bad_request(f"`{name}` is missing.")
        question = cls(**document)
        question._check(longest)
        return question

    def _check(self, longest):
        _check_number("model", self.model, int, 0, _LARGEST_ID)
        _check_text("The text", self.text, longest)


@dataclasses.dataclass(frozen=True)
class TranslationQuestion(_Question):
    """Translations wanted: found by a search, or drawn where there is a temperature."""

    count: int = 1  # translations, at most
    beam_size: int | None = None  # hypotheses; `None` is the model's own number
    prefix: str = ""  # how translations must begin
    temperature: float | None = None  # `None` is a search
    seed: int = 0  # of the first draw

    def _check(self, longest):
        super()._check(longest)
        _check_number("count", self.count, int, 1, MOST_TRANSLATIONS)
        if self.beam_size is not None:
            _check_number("beam_size", self.beam_size, int, 1, MOST_HYPOTHESES)
        _check_text("The beginning", self.prefix, longest)
        _check_number("seed", self.seed, int, 0, _LARGEST_ID)
        if self.temperature is None:
            return
        _check_number("temperature", self.temperature, float, 0, HIGHEST_TEMPERATURE)
        if self.prefix.strip() or self.beam_size is not None:
            raise bad_request(
                "A beginning and a beam go with a search, not with a temperature."
            )


@dataclasses.dataclass(frozen=True)
class AttentionQuestion(_Question):
    """What each token of a translation looked at."""

    translation: str
    tokens: list[int] | None = None  # ids of the translation, as they were answered
    layer: int | None = None  # of the decoder, from 0; `None` is the model's own
    head: int | None = None  # from 0; `None` is the mean of all

    def _check(self, longest):
        super()._check(longest)
        # A translation may be longer than what was typed.
        _check_text("The translation", self.translation, 20 * longest)
        for name in ("layer", "head"):
            if (value := getattr(self, name)) is not None:
                _check_number(name, value, int, 0, _LARGEST_ID)
        if self.tokens is None:
            return
        if not isinstance(self.tokens, list) or not 0 < len(self.tokens) < _MOST_TOKENS:
            raise bad_request("`tokens` must be a list of ids that is not empty.")
        for token in self.tokens:
            _check_number("tokens", token, int, 0, _LARGEST_ID)


def _check_text(what, text, longest):
    if not isinstance(text, str):
        raise bad_request(f"{what} must be a string.")
    if len(text) > longest:
        raise bad_request(
            f"{what} is too long: {len(text):,} characters; at most {longest:,} are "
            "taken."
        )


def _check_number(name, value, kind, least, most):
    kinds = (int, float) if kind is float else (int,)
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most:
        article = "a number" if kind is float else "a whole number"
        raise bad_request(
            f"`{name}` must be {article} from {least:g} to {most:g}. Received: "
            f"{value!r:.50}"
        )
