"""The base of all options: checks, documentation, JSON."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import numbers
import operator
import textwrap
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

_T = TypeVar("_T")

# Far beyond any use, so that a damaged file of options cannot ask for all memory.
UNITS = {"minimum": 1, "maximum": 2**20}
LAYERS = {"minimum": 1, "maximum": 1000}
ROWS = {"minimum": 1, "maximum": 10**8}  # of a table of vectors
RATE = {"minimum": 0.0, "below": 1.0}
MOST_TOKENS = 10**6
MOST_HYPOTHESES = 1000


# Arguments of ours, and what KerasHub, keras.io, TensorFlow's tutorial, PyTorch and
# Hugging Face call them.
ELSEWHERE = {
    "`d_ff`": "intermediate_dim intermediate_size dense_dim latent_dim dff "
    "dim_feedforward",
    "`d_model` of an embedding or a configuration; a layer takes it from its inputs": (
        "d_model embed_dim embedding_dim hidden_dim hidden_size output_dim"
    ),
    "in the configuration of a model: `num_layers`, or of a Transformer "
    "`num_encoder_layers` and `num_decoder_layers`": "num_layers n_layers",
    "`num_heads`": "nhead n_heads num_attention_heads num_query_heads",
    "`key_dim`": "head_dim head_size",
    "`dropout_rate`": "dropout rate",
    "`norm_first`": "normalize_first",
    "`vocabulary_size`": "vocab_size input_dim",
    "`source_vocabulary_size`": "input_vocab_size",
    "`target_vocabulary_size`": "target_vocab_size",
    "`max_length`": "sequence_length max_len",
    "`pad_id`": "mask_zero",
}


def check_names(cls, options):
    """Raises `TypeError` for an argument that has another name here."""
    if not cls.__module__.startswith("keras_transformer"):
        return  # A subclass may read arguments of its own.
    inits = [inspect.signature(kind.__init__) for kind in cls.__mro__]
    for ours, theirs in ELSEWHERE.items():
        for name in options.keys() & theirs.split():
            if not any(name in init.parameters for init in inits):
                raise TypeError(
                    f"`{cls.__name__}` has no argument `{name}`. Here it is {ours}. "
                    f"Received: {name}={options[name]!r:.60}"
                )


def option(
    default: Any, help: str, *, choices: Sequence[Any] | None = None, **bounds: Any
) -> Any:
    """Returns a field; `bounds` are `minimum`, `maximum`, `above` and `below`."""
    rules = {"help": help, "choices": choices, "bounds": bounds}
    return dataclasses.field(default=default, metadata=rules)


_BOUNDS = {
    "minimum": (operator.ge, "at least"),
    "maximum": (operator.le, "at most"),
    "above": (operator.gt, "above"),
    "below": (operator.lt, "below"),
}


def documented(cls: type[_T]) -> type[_T]:
    """Adds each field's help to the docstring of a dataclass, as `Args`."""
    lines = [inspect.cleandoc(cls.__doc__), "", "Args:", *argument_lines(cls)]
    cls.__doc__ = "\n".join(lines) + "\n"
    return cls


def argument_lines(cls: type, required: Collection[str] = ()) -> list[str]:
    """Returns each field's help as lines of `Args`; `required` ones have no default."""
    lines = []
    for field in dataclasses.fields(cls):
        text = field.metadata["help"]
        if field.metadata["choices"] is not None:
            text += f"; one of {', '.join(map(repr, field.metadata['choices']))}"
        has_default = isinstance(field.default, (bool, int, float, str))
        if has_default and field.name not in required:
            text += f"; default {field.default!r}"
        text = f"{field.name}: {text[:1].upper()}{text[1:]}."
        lines += textwrap.wrap(
            text, 84, initial_indent="    ", subsequent_indent=" " * 8
        )
    return lines


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of the options: checks, JSON, `replace`.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of its range, or an option is unknown.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        check_names(cls, options)
        return super().__new__(cls)

    def __post_init__(self):
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = _plain(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            _check_type(field.name, value, hints[field.name])
            rules = field.metadata
            if value is not None and rules and (rule := broken_rule(value, rules)):
                raise ValueError(
                    f"`{field.name}` must be {rule}. Received: {field.name}={value!r}"
                )

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other values, checked again."""
        reject_unknown(type(self), changes)
        return type(self)(**self.given() | changes)

    def given(self) -> dict[str, Any]:
        """Returns the options by name, as arguments that make an equal object."""
        return {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """Returns the options as plain Python values."""
        values = self.given()
        for name, value in values.items():
            if isinstance(value, Config):
                values[name] = value.to_dict()
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Makes options from a dictionary; those not in it keep their defaults."""
        if not isinstance(values, dict):
            raise TypeError(
                f"`{cls.__name__}` needs a dictionary of options. Received: {values!r}"
            )
        reject_unknown(cls, values)
        hints = typing.get_type_hints(cls)
        built = {}
        for name, value in values.items():
            kind = hints[name]
            if isinstance(kind, type) and issubclass(kind, Config):
                value = value if isinstance(value, kind) else kind.from_dict(value)
            built[name] = value
        return cls(**built)

    def to_json(self) -> str:
        """Returns the options as indented JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads the options from a JSON file."""
        return cls.from_dict(cls.given_in(path))

    @classmethod
    def given_in(cls, path: str | Path) -> dict[str, Any]:
        """Checks a JSON file of options and returns those that it sets."""
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            line = f"{path}:{error.lineno}"
            raise ValueError(f"{line}: not valid JSON: {error.msg}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: not valid JSON: {error}") from error
        try:
            cls.from_dict(values)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from error
        return values


def reject_unknown(cls, values):
    """Raises `ValueError` if a key of `values` is not an option of `cls`."""
    check_names(cls, values)
    known = [field.name for field in dataclasses.fields(cls)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ValueError(
            f"`{cls.__name__}` has no option {', '.join(map(repr, unknown))}. "
            f"Known options: {', '.join(known)}"
        )


def check_choice(name: str, value: Any, choices: Collection[str]):
    """Raises `ValueError` unless `value` is one of `choices`."""
    if value not in choices:
        words = ", ".join(choices)
        raise ValueError(f"`{name}` must be one of {words}. Received: {name}={value!r}")


def check_number(
    name: str,
    value: Any,
    kind: type = float,
    *,
    rule: str | None = None,
    optional: bool = False,
    or_tensor: bool = False,
    finite: bool = True,
    **bounds: float,
) -> None:
    """Raises `ValueError` unless a value is an int or float within `bounds`.

    A tensor or a symbolic size, whose value a graph does not know, is not checked.
    `rule` replaces the words of the error.
    """
    accepted = numbers.Integral if kind is int else numbers.Real
    is_number = isinstance(value, numbers.Number)
    # The order suits PyTorch's compiler, for which a size is an int without attributes.
    if isinstance(value, accepted) and not isinstance(value, bool):
        is_within = all(_BOUNDS[key][0](value, bound) for key, bound in bounds.items())
        if is_within and (kind is int or _is_meant(value, finite)):
            return
        expected = _in_words(bounds) if not is_within else "finite"
    elif optional and value is None:
        return
    elif or_tensor and hasattr(value, "__sub__") and not is_number:
        return  # A tensor, or one of JAX's sizes that are not known.
    else:
        expected = "an integer" if kind is int else "a number"
        expected = f"None or {expected}" if optional else expected
        expected += f", {_in_words(bounds)}" if bounds else ""
    raise ValueError(f"`{name}` must be {rule or expected}. Received: {name}={value!r}")


def _is_meant(number, finite):
    return math.isfinite(number) or (not finite and not math.isnan(number))


def _in_words(bounds):
    return " and ".join(f"{_BOUNDS[key][1]} {bound}" for key, bound in bounds.items())


def _plain(value):
    """Returns a number of NumPy's, which JSON has no word for, as one of Python's."""
    is_foreign = isinstance(value, numbers.Number) and hasattr(value, "item")
    return value.item() if is_foreign else value


def kinds_of(hint: Any) -> tuple[type, ...]:
    """Returns the classes of values that a type hint allows."""
    parts = typing.get_args(hint) or (hint,)
    # A `Literal`, and the words in it, are no classes.
    return tuple({part if isinstance(part, type) else str: None for part in parts})


def _check_type(name, value, hint):
    kinds = kinds_of(hint)
    # A bool is not taken for an int; an int is taken for a float.
    accepted = kinds + ((int,) if float in kinds else ())
    is_wrong_bool = isinstance(value, bool) and bool not in kinds
    if is_wrong_bool or not isinstance(value, accepted):
        names = " or ".join("None" if k is type(None) else k.__name__ for k in kinds)
        raise TypeError(f"`{name}` must be {names}. Received: {name}={value!r}")


def broken_rule(value: Any, rules: Mapping[str, Any]) -> str | None:
    """Returns the rule of an option's field that a value breaks, or `None`."""
    if isinstance(value, float) and not math.isfinite(value):
        return "finite"
    if rules["choices"] is not None and value not in rules["choices"]:
        return f"one of {', '.join(map(repr, rules['choices']))}"
    for name, bound in rules["bounds"].items():
        holds, words = _BOUNDS[name]
        if not holds(value, bound):
            return f"{words} {bound}"
    return None
