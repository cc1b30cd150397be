"""What a run is asked for, and the options of one that was not given any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
from rich.console import Console

from keras_transformer.config import (
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)
from keras_transformer.config.run_config import FINE_TUNING, preset_for
from keras_transformer.models.loading import read_config
from keras_transformer.models.transformer import Transformer
from keras_transformer.search.run_directory import trained_directory
from keras_transformer.search.translator import Translator
from keras_transformer.terminal import plural, say
from keras_transformer.text import open_pairs
from keras_transformer.text.pairs import ParallelText


@dataclass(frozen=True, kw_only=True)
class Job:
    """What `train` is asked for, by the names of its arguments.

    Raises `ValueError` if a part does not go with the others.
    """

    text: ParallelText
    config: RunConfig
    validation: ParallelText | None
    console: Console
    tokenizers: Any = None
    init: Translator | str | Path | None = None
    optimizer: keras.optimizers.Optimizer | None = None
    loss: Any = None
    model: Callable[[TransformerConfig], keras.Model] | None = None
    command: str | None = None

    def __post_init__(self):
        options = self.config.training
        check_validated(options, self.validation is not None)
        if self.model and (self.init or options.freeze):
            raise ValueError(
                "`model` makes its own weights: leave out `init` and `freeze`."
            )
        optimizer = self.optimizer
        if optimizer is not None and (optimizer.built or options.ema_decay):
            raise ValueError(
                "`optimizer` must be new: one that has updated a model keeps its "
                "moments. For a moving average give it `use_ema=True` in place of "
                f"`ema_decay`. Received: built={optimizer.built}, "
                f"ema_decay={options.ema_decay}"
            )


def check_validated(options: TrainingConfig, validated: bool):
    """Raises `ValueError` if an option needs validation pairs and there are none."""
    given = {
        "`average` 'best'": options.average == "best",
        "`monitor` 'bleu'": options.monitor == "bleu",
        "`patience`": options.patience is not None,
    }
    needing = [name for name, is_given in given.items() if is_given]
    if needing and not validated:
        raise ValueError(
            f"{', '.join(needing)} needs validation pairs: give some (`--valid`), or "
            "leave it out."
        )


def default_config(
    directory: str | Path,
    init: Translator | str | Path | None = None,
    text: Any = None,
    console: Console | None = None,
) -> RunConfig:
    """Returns the default options of a run.

    An existing run has its own. A new one has the preset for its number of pairs; or
    with `init` the model, tokenizer and search options of that translator and training
    options for fine-tuning.

    Args:
        directory: Directory of the run.
        init: The translator that it begins with, or its directory.
        text: Training pairs, as `open_pairs` returns or takes them. Without them and
            `init` a new run has the paper's options.
        console: Rich console that is told the preset.

    Raises:
        FileNotFoundError: If `init` holds no translator.
        ValueError: If a file is damaged.

    Example:
        >>> config = default_config("runs/domain", init="runs/en-de")
        >>> config = config.with_options(epochs=20, dropout_rate=0.3)
    """
    if (own := Path(directory) / "config.json").exists():
        return RunConfig.load(own)
    if init is None and text is None:
        return RunConfig()
    if init is None:
        count = open_pairs(text).count()
        name = preset_for(count)
        if console is not None:
            words = f"the preset for {plural(count, 'pair')} is {name}"
            say(console, f"{words}: other options override it")
        return RunConfig.preset(name)
    if isinstance(init, Translator):
        check_transformer(init.model)
        parts = init.model.config, init.tokenizers.config, init.config
    else:
        folder = trained_directory(init)
        parts = (
            read_config(folder / "model.keras"),
            TokenizerConfig.load(folder / "tokenizer" / "tokenizer.json"),
            DecodingConfig.load(folder / "decoding.json"),
        )
    model, tokenizer, search = parts
    return RunConfig(model, tokenizer, decoding=search).with_options(**FINE_TUNING)


def check_transformer(model: keras.Model):
    """Raises `ValueError` unless a run can begin with the weights of a model."""
    if type(model) is not Transformer:
        raise ValueError(
            "The model of `init` must be a `Transformer`; train others with "
            f"`model.fit`. Received: a {type(model).__name__}"
        )
