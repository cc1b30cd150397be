"""Makes a new run of the mean of another run's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keras_transformer.config import RunConfig
from keras_transformer.files import replacing
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer_pair import TokenizerPair
from keras_transformer.training.checkpoints import checkpoints_in, load_average
from keras_transformer.training.run_directory import check_new_directory
from keras_transformer.translator import Translator


def average_run(
    run: str | Path,
    output: str | Path,
    last: int | None = None,
    checkpoints: Sequence[str | Path] | None = None,
) -> list[Path]:
    """Makes a new run of the mean of the checkpoints of a run, finished or not.

    The new directory has config.json, tokenizer/ and its digests, decoding.json and
    model.keras: what `evaluate`, `translate` and `export` read.

    Args:
        run: Directory of a run.
        output: Directory to write; must be new or empty.
        last: Number of checkpoints, the run's last ones; default all.
        checkpoints: Files to average instead.

    Returns:
        The checkpoints that were averaged.

    Raises:
        FileExistsError: If `output` holds something.
        FileNotFoundError: If a file is missing.
        ValueError: If there are too few checkpoints, one does not fit the run's model,
            the tokenizer is not the run's, or both `last` and `checkpoints` are given.

    Example:
        >>> average_run("runs/en-de", "runs/en-de-mean-of-3", last=3)
    """
    run, output = Path(run), Path(output)
    check_new_directory(output)
    paths = _chosen(run, last, checkpoints)
    config = RunConfig.load(run / "config.json")
    tokenizers = TokenizerPair.load(run / "tokenizer")
    model = Transformer(config.model)
    for path in paths:
        try:
            model.load_weights(path)
        except (ValueError, KeyError, OSError) as error:
            raise ValueError(
                f"{path} does not fit the model of {run}, or is damaged."
            ) from error
    load_average(model, paths)
    Translator(model, tokenizers, config.decoding).save(output)
    with replacing(output / "config.json") as temporary:
        temporary.write_text(config.to_json(), encoding="utf-8")
    return paths


def _chosen(run, last, checkpoints):
    """Returns the paths of the checkpoints to average."""
    if checkpoints is not None:
        if last is not None:
            raise ValueError("Give `last` or `checkpoints`, not both.")
        paths = [Path(path) for path in checkpoints]
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file")
        return paths
    paths = list(checkpoints_in(run / "checkpoints").values())
    if not paths:
        raise FileNotFoundError(f"{run / 'checkpoints'} holds no checkpoint.")
    if last is not None and not 1 <= last <= len(paths):
        raise ValueError(
            f"`last` must be from 1 to {len(paths)}, the checkpoints in {run}. "
            f"Received: last={last}"
        )
    return paths if last is None else paths[-last:]
