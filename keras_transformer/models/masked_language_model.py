"""Pre-training of a text encoder: fill in tokens that were hidden."""

from __future__ import annotations

import math
from typing import TypedDict, Unpack

import keras
import numpy as np

from keras_transformer.exact_training import ExactTraining
from keras_transformer.layers.arguments import check_size
from keras_transformer.models.encoder_model import EncoderModel
from keras_transformer.models.output_head import OutputHead, matrix_of
from keras_transformer.models.text_encoder import HasTextEncoder, TextEncoder
from keras_transformer.types import (
    BasicOptions,
    Shape,
    Tensor,
    TensorLike,
)

# Of the tokens to be predicted: shown as the mask, and as a random token.
MASKED, REPLACED = 0.8, 0.1


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedLanguageModel(HasTextEncoder, ExactTraining, EncoderModel):
    """A text encoder that scores what each token is, from the tokens on both sides.

    Task 1 of section 3.1 of Devlin et al., 2019, https://arxiv.org/abs/1810.04805. The
    output matrix is the embedding's, so only the encoder has weights. It trains
    with `model.fit(MaskedTokens(...))` and `MaskedCrossentropy`; then the encoder goes
    to a `Tagger` or a `TextClassifier`.

    Args:
        encoder: A `TextEncoder` with one id a token.
    Call arguments:
        inputs: Integer tensor (B, S).
        training: Whether dropout is applied.
        return_states: Whether to return the last states instead of the logits.
    Returns:
        Logits, a float tensor (B, S, V); or the encoder's last states, (B, S, D).
    Raises:
        TypeError: If `encoder` is not a `TextEncoder`.
        ValueError: If `encoder` has several features a token.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> model = MaskedLanguageModel(TextEncoder(config, vocabulary_size=11))
        >>> model.compile("adam", MaskedCrossentropy())
        >>> ids = np.array([[5, 6, 7], [8, 9, 0]])
        >>> model.fit(MaskedTokens(ids, 2, mask_id=4, first_id=5, vocabulary_size=11))
    """

    encoder_classes = (TextEncoder,)
    trains_without_logits = True
    encoder: TextEncoder

    def __init__(self, encoder: TextEncoder, **kwargs: Unpack[BasicOptions]) -> None:
        super().__init__(encoder, **kwargs)
        if encoder.num_features is not None:
            raise ValueError(
                "`encoder` must have one id a token: with several features it is not "
                f"clear which was hidden. Received: num_features={encoder.num_features}"
            )
        # Every size is known, so the weights exist from the start.
        self.build()

    def build(self, input_shape: Shape | None = None) -> None:
        self.output_head = OutputHead(matrix_of(self.encoder.embedding))
        self.built = True

    def call(
        self, inputs: TensorLike, training: bool | None = None,
        return_states: bool = False,
    ) -> Tensor:  # fmt: skip
        inputs = self.encoder.checked("inputs", inputs)
        states = self.encoder(inputs, training=training)
        return states if return_states else self.logits(states)

    def logits(self, states: TensorLike) -> Tensor:
        """Multiplies states (B, S, D) by the embedding's matrix, transposed (D, V)."""
        return self.output_head.logits(states, self.compute_dtype)

    def output_rows(self) -> Tensor:
        """Returns the embedding's matrix (V, D); see `ExactTraining`."""
        return self.output_head.rows()

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape, self.encoder.vocabulary_size)


def mask_tokens(
    ids: np.ndarray, generator: np.random.Generator, mask_id: int, first_id: int,
    vocabulary_size: int, rate: float = 0.15,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Hides some tokens, for a model to fill in.

    Each token is chosen with probability `rate`. Of the chosen ones 80 % are shown as
    the mask, 10 % as a random token and 10 % as they are: section 3.1 and appendix A.1
    of Devlin et al., 2019, https://arxiv.org/abs/1810.04805.

    Args:
        ids: Integer array (B, S), 0 for padding.
        generator: `numpy.random.Generator`.
        mask_id: Id of the mask.
        first_id: Ids below it are special: they are neither chosen nor drawn.
        vocabulary_size: Random tokens are below it.
        rate: Share of the tokens to be predicted, in (0, 1].

    Returns:
        The ids to show and the ids to predict, arrays (B, S); the second has 0, which
        does not count in the loss, where a token was not chosen.

    Raises:
        ValueError: If `rate` is outside (0, 1], the special ids do not cover 0 and
            `mask_id`, or no other id is left.

    Example:
        >>> shown, targets = mask_tokens(ids, np.random.default_rng(1), 4, 5, 11)
    """
    _check_masking(mask_id, first_id, vocabulary_size, rate)
    ids = np.asarray(ids)
    chosen = (generator.random(ids.shape) < rate) & (ids >= first_id)
    lot = generator.random(ids.shape)
    random_ids = generator.integers(first_id, vocabulary_size, ids.shape, ids.dtype)
    shown = np.where(chosen & (lot < MASKED), mask_id, ids)
    is_replaced = chosen & (lot >= MASKED) & (lot < MASKED + REPLACED)
    shown = np.where(is_replaced, random_ids, shown).astype(ids.dtype)
    return shown, np.where(chosen, ids, 0)


class DatasetOptions(TypedDict, total=False):
    """What `keras.utils.PyDataset` takes by name."""

    workers: int
    use_multiprocessing: bool
    max_queue_size: int


class MaskedTokens(keras.utils.PyDataset):
    """Batches of `mask_tokens`, in a new order and with new masks every epoch.

    Args:
        ids: Integer array (texts, S), 0 for padding.
        batch_size: Rows of a batch; the last one may have fewer.
        mask_id: Id of the mask.
        first_id: Ids below it are special: they are neither chosen nor drawn.
        vocabulary_size: Random tokens are below it.
        rate: Share of the tokens to be predicted, in (0, 1].
        seed: Seed of the order and the masks: the same one gives the same epochs.
        **kwargs: As `keras.utils.PyDataset`.
    Raises:
        ValueError: As `mask_tokens`, or if `batch_size` is not positive.

    Example:
        >>> batches = MaskedTokens(ids, 32, mask_id=4, first_id=5, vocabulary_size=99)
        >>> shown, targets = batches[0]  # (32, S) each
    """

    def __init__(
        self, ids: np.ndarray, batch_size: int, mask_id: int, first_id: int,
        vocabulary_size: int, rate: float = 0.15, seed: int = 0,
        **kwargs: Unpack[DatasetOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        check_size("batch_size", batch_size)
        _check_masking(mask_id, first_id, vocabulary_size, rate)
        self.ids = np.asarray(ids)
        self.batch_size = batch_size
        self.masking = (mask_id, first_id, vocabulary_size, rate)
        self.seed = seed
        self.epoch = -1
        self.on_epoch_end()

    def __len__(self):
        return math.ceil(len(self.ids) / self.batch_size)

    def __getitem__(self, index):
        # A batch depends on its number alone, so any worker can make it.
        rows = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        generator = np.random.default_rng((self.seed, self.epoch, index))
        return mask_tokens(self.ids[rows], generator, *self.masking)

    def on_epoch_end(self) -> None:
        """Moves on to the next epoch's order and masks."""
        self.epoch += 1
        generator = np.random.default_rng((self.seed, self.epoch))
        self._order = generator.permutation(len(self.ids))


def _check_masking(mask_id, first_id, vocabulary_size, rate):
    if not 0 < rate <= 1:
        raise ValueError(f"`rate` must be in (0, 1]. Received: rate={rate!r}")
    if not 0 < mask_id < first_id < vocabulary_size:
        raise ValueError(
            "The ids must be 0 < `mask_id` < `first_id` < `vocabulary_size`. Received: "
            f"mask_id={mask_id}, first_id={first_id}, "
            f"vocabulary_size={vocabulary_size}"
        )
