"""How much memory a server of an exported translator needs, estimated at export.

An estimate of what a batch keeps while it is translated, from the sizes of the model
and the lengths that its search allows, and of what TensorFlow and the weights take.
`docs/serving.md` has it beside what was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.config import DecodingConfig
from keras_transformer.export.warmup_requests import MAX_BATCH_SIZE

MIB = 2**20
# Batches that batching_parameters.txt lets be translated at the same time.
BATCHES_AT_ONCE = 4
# Tokens of what most requests are: a sentence.
USUAL_TOKENS = 32
# The program without a model, its threads, and what its allocator keeps back.
_PROGRAM = 512 * MIB
# The graphs of a version that is loaded, beside its files; hardly more for large ones.
_GRAPHS = 256 * MIB
# Two are in memory while one takes the other's place.
_VERSIONS = 2


class ServerMemory(NamedTuple):
    """The memory that TensorFlow Serving needs for a model (bytes).

    Attributes:
        version: A version that is loaded.
        usual_batch: A batch of sentences of `USUAL_TOKENS` tokens.
        longest_batch: A batch of the longest texts that the search allows.
        longest_text: Tokens of such a text.
    """

    version: int
    usual_batch: int
    longest_batch: int
    longest_text: int

    @property
    def usual(self) -> int:
        """While it translates sentences, a multiple of 64 MiB."""
        return self._with(self.usual_batch)

    @property
    def most(self) -> int:
        """While it translates the longest texts, a multiple of 64 MiB."""
        return self._with(max(self.usual_batch, self.longest_batch))

    def _with(self, batch):
        total = _PROGRAM + _VERSIONS * self.version + BATCHES_AT_ONCE * batch
        return -(-total // (64 * MIB)) * 64 * MIB

    def in_words(self, indent: str) -> str:
        """Returns what `most` consists of, in two lines.

        Args:
            indent: What the second line begins with.
        """
        batch = max(self.usual_batch, self.longest_batch)
        return (
            f"{_PROGRAM // MIB} MiB for TensorFlow, {_VERSIONS} versions of "
            f"{-(-self.version // MIB)},\n{indent}{BATCHES_AT_ONCE} batches of "
            f"{MAX_BATCH_SIZE} texts of {self.longest_text} tokens, "
            f"{-(-batch // MIB)} each"
        )


class BatchMemory(NamedTuple):
    """What a batch keeps while it is translated (bytes).

    Attributes:
        usual: With sentences of `USUAL_TOKENS` tokens.
        longest: With the longest texts that the search allows.
        longest_text: Tokens of such a text.
    """

    usual: int
    longest: int
    longest_text: int


def batch_memory(model: Any, config: DecodingConfig, dtype: str) -> BatchMemory:
    """Estimates what a batch of the server keeps while it is translated.

    Args:
        model: A `Seq2Seq`, or an `Ensemble` of such.
        config: How it is searched.
        dtype: Type of the weights and of the computation.
    """
    size = 4 if dtype == "float32" else 2
    members = getattr(model, "members", [model])

    def total(source):
        target = min(source + config.max_extra_length, config.longest_output)
        rows = MAX_BATCH_SIZE, config.beam_size, source, target
        return round(size * sum(_numbers(member.config, *rows) for member in members))

    longest = config.max_source_length
    return BatchMemory(total(min(USUAL_TOKENS, longest)), total(longest), longest)


def server_memory(version: str | Path, batch: BatchMemory) -> ServerMemory:
    """Estimates the memory of a server of a version.

    Args:
        version: Directory of the SavedModel.
        batch: Of `batch_memory`.
    """
    files = [path for path in Path(version).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    return ServerMemory(_GRAPHS + size, *batch)


def _numbers(sizes, rows, hypotheses, source, target):
    """Numbers that a model keeps for a batch, of which every row is that long."""
    # Logits, their logarithms, and the copies of a search for the best of them.
    logits = 6 * rows * hypotheses * sizes.target_vocabulary_size
    # The encoder's largest layer, and what all decoder layers look back at.
    key_dim = sizes.key_dim or sizes.d_model // sizes.num_heads
    groups = sizes.num_key_value_heads or sizes.num_heads
    keys_and_values = groups * (key_dim + (sizes.value_dim or key_dim))
    # Additive attention has a vector where others have a score.
    score = sizes.num_heads * (key_dim if sizes.attention == "additive" else 1)
    states = 8 * sizes.d_model + 2 * sizes.d_ff
    encoder = source * (states + 2 * score * source)
    # A hypothesis is masked from the past of the others, not spared it.
    past = target * hypotheses
    attending = 2 * score * hypotheses * (past + source)
    kept = sizes.num_decoder_layers * keys_and_values * (source + past)
    return logits + rows * (encoder + attending + kept + hypotheses * states)
