"""What every layer of a Transformer attends to for one sentence and its translation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.generation.generator import Generator
from keras_transformer.layers.attention import recorded_attention
from keras_transformer.layers.linear_attention import LinearAttention
from keras_transformer.layers.ssru import SSRU
from keras_transformer.models.transformer import Transformer

if TYPE_CHECKING:  # It loads TensorFlow.
    from keras_transformer.translator import Translator


class SentenceAttention(NamedTuple):
    """The attention weights of all layers (first axis, L) and heads, and the tokens.

    Row t of `decoder` and of `cross` is the attention with which the target's token t
    is chosen; it is computed at the token before, `decoder_tokens[t]`.
    """

    source_tokens: list[str]  # S pieces, the end token included
    target_tokens: list[str]  # T pieces, the end token included where it was reached
    decoder_tokens: list[str]  # T pieces, the target shifted right by the start token
    encoder: Any  # (L, H, S, S) float array; `None` of attention without weights
    decoder: Any  # (L, H, T, T), self-attention; `None` of a decoder without weights
    cross: Any  # (L, H, T, S)

    def of(self, kind: str, layer: int = -1) -> tuple[np.ndarray, list[str], list[str]]:
        """Returns the weights of a layer with their tokens, as `plots` takes them.

        Args:
            kind: "encoder", "decoder" or "cross".
            layer: Layer, counted from 0, or backwards from -1.

        Returns:
            Weights (H, T, S), tokens of the queries (T) and tokens of the keys (S).

        Raises:
            ValueError: If there is no such kind or layer, or its attention has no
                weights, as linear attention and an SSRU have none.

        Example:
            >>> seen = plots.sentence_attention(translator, "Two men are talking.")
            >>> figure = plots.attention_heads(*seen.of("cross", layer=-1))
        """
        tokens = {
            "encoder": (self.source_tokens, self.source_tokens),
            "decoder": (self.decoder_tokens, self.decoder_tokens),
            "cross": (self.target_tokens, self.source_tokens),
        }
        if kind not in tokens:
            raise ValueError(
                f"`kind` must be one of {', '.join(tokens)}. Received: kind={kind!r}"
            )
        weights = getattr(self, kind)
        if weights is None:
            raise ValueError(
                f"The {kind}'s self-attention has no weights to show: it makes no "
                "T x S matrix, or is an SSRU; `kind` must be another. Received: "
                f"kind={kind!r}"
            )
        if not -len(weights) <= layer < len(weights):
            raise ValueError(
                f"`layer` must be from {-len(weights)} to {len(weights) - 1}. "
                f"Received: layer={layer}"
            )
        return (weights[layer], *tokens[kind])


def sentence_attention(
    translator: Translator, text: str, translation: str | None = None
) -> SentenceAttention:
    """Returns what every layer and head attends to, in a sentence and its translation.

    Args:
        translator: A `Translator` of a `Transformer`.
        text: A sentence.
        translation: Its translation; by default what the translator finds.

    Returns:
        A `SentenceAttention`.

    Raises:
        ValueError: If the model is not a `Transformer`, its attention is not recorded,
            or `text` is empty.

    Example:
        >>> seen = plots.sentence_attention(Translator.load("runs/en-de"), "A man.")
        >>> seen.cross.shape  # (L, H, T, S)
    """
    model, tokenizers = translator.model, translator.tokenizers
    if not isinstance(model, Transformer):
        raise ValueError(
            "Only a `Transformer` has the three kinds of attention; "
            "`Translator.align` gives what any translator attends to. Received: a "
            f"`{type(model).__name__}`"
        )
    source = _ids(tokenizers.source, text)
    if len(source) < 2:
        raise ValueError(f"`text` must not be empty. Received: text={text!r}")
    if translation is None:
        target_out = _searched(translator, source)
    else:
        target_out = _ids(tokenizers.target, translation)
    target_in = [model.config.start_id, *target_out[:-1]]
    inputs = tuple(np.array([ids], "int32") for ids in (source, target_in))
    with recorded_attention() as record:
        model(inputs, training=False)
    encoder, decoder = model.encoder_layers, model.decoder_layers
    return SentenceAttention(
        source_tokens=tokenizers.source.pieces(source),
        target_tokens=tokenizers.target.pieces(target_out),
        decoder_tokens=tokenizers.target.pieces(target_in),
        encoder=_to_itself(record, encoder),
        decoder=_to_itself(record, decoder),
        cross=_stacked(record, [layer.cross_attention for layer in decoder]),
    )


def _ids(tokenizer, text):
    pieces = tokenizer.tokenize([text])[0].numpy()
    return [*pieces.tolist(), tokenizer.end_id]


def _searched(translator, source):
    """The ids of the best translation."""
    generator = Generator(translator.model, translator.config)
    lengths = np.array([len(source)], "int32")
    result = generator.search(np.array([source], "int32"), lengths)
    length = max(1, int(ops.convert_to_numpy(result.lengths)[0, 0]))
    return ops.convert_to_numpy(result.ids)[0, 0, :length].tolist()


def _to_itself(record, layers):
    """The weights of self-attention, or `None` where no layer has any."""
    attentions = [layer.self_attention for layer in layers]
    if all(isinstance(one, (LinearAttention, SSRU)) for one in attentions):
        return None
    return _stacked(record, attentions)


def _stacked(record, attentions):
    """Weights (L, H, T, S) of the one sentence in the batch."""
    if any(attention not in record for attention in attentions):
        raise ValueError(
            "The model's attention is not recorded: a layer of your own must call "
            "`record_attention`, as `MultiHeadAttention` does."
        )
    return np.stack(
        [ops.convert_to_numpy(record[attention][0])[0] for attention in attentions]
    ).astype("float32")
