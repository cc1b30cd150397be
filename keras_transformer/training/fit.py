"""A training run: text and options in, a directory with a trained translator out."""

from __future__ import annotations

from pathlib import Path

import keras
from rich.console import Console

from keras_transformer.config import RunConfig, TrainingConfig
from keras_transformer.files import replacing
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models.transformer import Transformer
from keras_transformer.schedules import TransformerSchedule
from keras_transformer.text import (
    Corpus,
    ParallelText,
    TokenizerPair,
    learn_tokenizers,
)
from keras_transformer.training.averaging import KeepCheckpoints, load_average
from keras_transformer.training.callbacks import (
    ProgressReport,
    StopAtLimit,
    StopOnDivergence,
    TokenRate,
)
from keras_transformer.translator import Translator


def train(
    text: ParallelText,
    directory: str | Path,
    config: RunConfig | None = None,
    validation: ParallelText | None = None,
    console: Console | None = None,
) -> Translator:
    """Learns a vocabulary, trains a `Transformer` with `model.fit`, keeps everything.

    The directory then holds config.json, tokenizer/, checkpoints/, log.csv,
    tensorboard/, and the translator made of the mean of the last checkpoints:
    model.keras and decoding.json. `Translator.load(directory)` reads it.

    Args:
        text: Training pairs, as `open_pairs` returns.
        directory: Directory of the run; must be new or empty.
        config: All options; the vocabulary sizes are set to those learned.
        validation: Pairs whose loss, accuracy and perplexity are logged every epoch.
        console: Where progress goes; default the terminal.

    Returns:
        The trained `Translator`.

    Raises:
        FileExistsError: If `directory` holds something.
        FloatingPointError: If the loss becomes infinite or not a number.
        OSError: If a file cannot be read.
        ValueError: If the data or an option is bad.

    Example:
        >>> pairs = open_pairs("train.en", "train.de")
        >>> train(pairs, "runs/en-de", RunConfig())(["Two men are talking."])
        ['Zwei Männer unterhalten sich.']
    """
    directory = Path(directory)
    check_new_directory(directory)
    config = RunConfig() if config is None else config
    console = Console() if console is None else console
    keras.utils.set_random_seed(config.training.seed)

    console.print("learning the vocabulary")
    tokenizers = learn_tokenizers(text, config.tokenizer, config.data.bad_line_budget)
    config = config.replace(
        model=config.model.replace(
            source_vocabulary_size=tokenizers.source.vocabulary_size,
            target_vocabulary_size=tokenizers.target.vocabulary_size,
        )
    )
    # All that can be wrong with options and data shows here, before anything is kept.
    model = compiled_model(config)
    corpora = _corpora(text, validation, tokenizers, config)
    directory.mkdir(parents=True, exist_ok=True)
    with replacing(directory / "config.json") as temporary:
        temporary.write_text(config.to_json(), encoding="utf-8")
    tokenizers.save(directory / "tokenizer")

    console.print(f"training {model.count_params():,} parameters")
    checkpoints = KeepCheckpoints(
        directory / "checkpoints", config.training.average_checkpoints
    )
    _fit(model, corpora, checkpoints, directory, config, console)
    load_average(model, checkpoints.paths())
    translator = Translator(model, tokenizers, config.decoding)
    translator.save(directory)
    return translator


def compiled_model(config: RunConfig) -> Transformer:
    """Returns a new `Transformer`, compiled with the run's optimizer, loss, metrics."""
    options = config.training
    model = Transformer(
        config.model, dtype="mixed_bfloat16" if options.mixed_precision else "float32"
    )
    pad_id = config.model.pad_id
    model.compile(
        optimizer=make_optimizer(options, config.model.d_model),
        loss=MaskedCrossentropy(options.label_smoothing, pad_id),
        metrics=[MaskedAccuracy(pad_id), Perplexity(pad_id)],
        jit_compile=options.jit_compile,
    )
    return model


def make_optimizer(options: TrainingConfig, d_model: int) -> keras.optimizers.Optimizer:
    """Returns the run's optimizer with the paper's learning-rate schedule.

    "adam" has the paper's beta_1 0.9, beta_2 0.98 and epsilon 1e-9 (section 5.3),
    "momentum" is stochastic gradient descent with momentum 0.9.

    Args:
        options: Names the optimizer and the schedule's scale and warm-up.
        d_model: Width of the model, for the schedule.

    Returns:
        A Keras optimizer.
    """
    rate = TransformerSchedule(
        d_model, options.warmup_steps, options.learning_rate_scale
    )
    optimizers = keras.optimizers
    makers = {
        "adam": lambda: optimizers.Adam(rate, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        "sgd": lambda: optimizers.SGD(rate),
        "momentum": lambda: optimizers.SGD(rate, momentum=0.9),
        "adagrad": lambda: optimizers.Adagrad(rate),
        "rmsprop": lambda: optimizers.RMSprop(rate),
    }
    return makers[options.optimizer]()


def check_new_directory(directory: Path):
    """Checks that a run can be kept in a directory.

    Args:
        directory: Directory of the run.

    Raises:
        FileExistsError: Unless it is empty or does not exist.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(
            f"{directory} holds something already; a run needs a new or empty "
            "directory. Choose another or remove it."
        )


def _corpora(text, validation, tokenizers: TokenizerPair, config: RunConfig):
    """Returns the training corpus and the validation corpus or `None`."""
    options = {"static_shapes": config.training.jit_compile}
    training = Corpus(
        text, tokenizers, config.data, seed=config.training.seed, **options
    )
    if validation is None:
        return training, None
    return training, Corpus(validation, tokenizers, config.data, **options)


def _fit(model, corpora, checkpoints, directory, config, console):
    """Runs `model.fit` with the run's callbacks."""
    training, validation = corpora
    options = config.training
    callbacks = [
        StopOnDivergence(),
        StopAtLimit(options.max_updates, options.max_minutes),
        TokenRate(training),
        checkpoints,
        keras.callbacks.CSVLogger(directory / "log.csv"),
        keras.callbacks.TensorBoard(directory / "tensorboard"),
        ProgressReport(training, console),
    ]
    for name, corpus in (("training", training), ("validation", validation)):
        if corpus is not None:
            console.print(
                f"{name} data: {corpus.num_pairs:,} pairs, {corpus.num_batches:,} "
                f"batches, {corpus.bad_lines}",
                highlight=False,
            )
    try:
        model.fit(
            training.dataset(),
            validation_data=validation and validation.dataset(shuffle=False),
            epochs=options.epochs,
            callbacks=callbacks,
            shuffle=False,  # The corpus shuffles.
            verbose=0,
        )
    except BaseException:
        # Keras leaves callbacks open after an error: a bar that runs, an unwritten log.
        for callback in callbacks:
            callback.on_train_end()
        raise
