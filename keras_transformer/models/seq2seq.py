"""What models from source ids to target ids share, and what each must define."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.config import Seq2SeqConfig
from keras_transformer.exact_training.exact_training import ExactTraining
from keras_transformer.models.has_config import HasConfig
from keras_transformer.models.has_signature import HasSignature
from keras_transformer.models.output_head import OutputHead


class Seq2Seq(HasConfig, HasSignature, ExactTraining, keras.Model):
    """Base of the models from a source sequence to a target sequence of ids.

    It trains with `model.compile` and `model.fit` on `((source, target_in),
    target_out)`, where `target_in` is `target_out` shifted right by the start id.
    `Generator`, `Translator` and exports take any such model. A subclass has a
    `config_class` and the methods

    - `make_embedding(name, vocabulary_size)`: a layer with a matrix `embeddings`
      (V, D), which the output may share.
    - `encode(source, training)`: the encoder's output (B, S, E) and its boolean mask
      (B, 1, S), True where a position is not padding.
    - `decode_states(target_in, encoder_output, source_mask, training)`: the states
      (B, T, D) that `logits` multiplies by the output matrix.
    - `attention(target_in, encoder_output, source_mask, layer)`: how a decoder layer
      attends to the source, (B, H, T, S).
    - `start_decoding`, `decode_step`, `resize_decoding`, `decoding_weights` and
      `coverage`: decoding step by step, as `Transformer` describes them.

    and calls `build_embeddings` and `build_output_head` in its `build`.

    Args:
        config: The sizes, a `config_class`.
    Call arguments:
        inputs: A pair of integer tensors: source (B, S) and target_in (B, T).
        training: Whether dropout is applied.
        return_states: Whether to return the last states instead of the logits.
    Returns:
        Logits, a float tensor (B, T, V): row t scores the token after target_in[t]; or
        the decoder's last states, (B, T, D).
    Raises:
        TypeError: If `config` is not a `config_class`.
    """

    config_class = Seq2SeqConfig

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.target_embedding = self.make_embedding(
            "target_embedding", config.target_vocabulary_size
        )
        if config.tied_embeddings == "three-way":
            self.source_embedding = self.target_embedding
        else:
            self.source_embedding = self.make_embedding(
                "source_embedding", config.source_vocabulary_size
            )

    def build_embeddings(self):
        """Builds the source and the target embedding, for `build`."""
        self.target_embedding.build((None, None))
        if self.source_embedding is not self.target_embedding:
            self.source_embedding.build((None, None))

    def build_output_head(self):
        """Makes the output matrix, unless it is the target embedding's, for `build`."""
        config = self.config
        if config.tied_embeddings != "none":
            self.output_head = OutputHead(self.target_embedding.embeddings, tied=True)
            return
        self.output_kernel = self.add_weight(
            shape=(config.d_model, config.target_vocabulary_size),
            initializer="glorot_uniform",
            name="output_kernel",
        )
        self.output_head = OutputHead(self.output_kernel, tied=False)

    def call(self, inputs, training=None, return_states=False):
        source, target_in = inputs
        encoder_output, source_mask = self.encode(source, training=training)
        decode = self.decode_states if return_states else self.decode
        return decode(target_in, encoder_output, source_mask, training=training)

    def decode(self, target_in, encoder_output, source_mask, training=None):
        """Scores every next token of whole target sentences.

        Args:
            target_in: Integer tensor (B, T).
            encoder_output: Float tensor (B, S, E), from `encode`.
            source_mask: Boolean tensor (B, 1, S), from `encode`.
            training: Whether dropout is applied.

        Returns:
            Logits (B, T, V).
        """
        states = self.decode_states(target_in, encoder_output, source_mask, training)
        return self.logits(states)

    def logits(self, states):
        """Multiplies states (B, T, D) by the output matrix (D, V), tied or not."""
        return self.output_head.logits(states, self.compute_dtype)

    def output_rows(self):
        return self.output_head.rows_for(self, Seq2Seq, "call", "decode", "logits")

    def with_dtype(self, dtype):
        """Returns this model if it computes and stores in `dtype`, or a copy that does.

        Args:
            dtype: Float type, such as "bfloat16".
        """
        if self.dtype_policy.name == dtype:
            return self
        policy = keras.DTypePolicy(dtype)
        config = self.get_config() | {
            "dtype": keras.saving.serialize_keras_object(policy)
        }
        copy = type(self).from_config(config)
        for ours, theirs in zip(copy.weights, self.weights, strict=True):
            ours.assign(ops.cast(theirs, dtype))
        return copy

    def input_signature(self):
        """Any batch of ids, source (B, S) and target_in (B, T)."""
        ids = keras.InputSpec(shape=(None, None), dtype="int32")
        return [(ids, ids)]

    def compute_output_shape(self, input_shape):
        return (*input_shape[1], self.config.target_vocabulary_size)
