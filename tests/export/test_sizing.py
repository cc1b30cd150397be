"""The estimate of the memory that a server needs."""

from __future__ import annotations

import pytest

from keras_transformer import (
    DecodingConfig,
    Ensemble,
    Transformer,
    TransformerConfig,
)
from keras_transformer.export.sizing import (
    MIB,
    BatchMemory,
    ServerMemory,
    batch_memory,
    server_memory,
)

SIZES = {"source_vocabulary_size": 101, "target_vocabulary_size": 101}
SEARCH = DecodingConfig(beam_size=3, max_source_length=96, max_extra_length=10)


def transformer(**options):
    return Transformer(TransformerConfig.preset("tiny", **SIZES, **options))


def test_what_is_kept_of_the_past_is_counted():
    """Of 32 texts: keys and values of 4 layers, 3 hypotheses and 106 tokens."""
    one, two = (
        batch_memory(transformer(num_decoder_layers=layers), SEARCH, "float32")
        for layers in (4, 5)
    )
    keys_and_values = 2 * 128
    numbers = 32 * keys_and_values * (96 + 3 * 106)
    assert two.longest - one.longest == 4 * numbers
    assert one.longest > 4 * 4 * numbers
    assert one.longest_text == 96


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"beam_size": 4}, True),
        ({"max_source_length": 97}, True),
        ({"max_extra_length": 11}, True),
        ({"max_output_length": 50}, False),
    ],
)
def test_the_search_says_how_much(change, more):
    model = transformer()
    before = batch_memory(model, SEARCH, "float32").longest
    after = batch_memory(model, SEARCH.replace(**change), "float32").longest
    assert (after > before) if more else (after < before)


def test_bfloat16_takes_half_and_a_usual_sentence_less():
    model = transformer()
    full = batch_memory(model, SEARCH, "float32")
    half = batch_memory(model, SEARCH, "bfloat16")
    assert half.longest * 2 == full.longest and half.usual * 2 == full.usual
    assert full.usual < full.longest
    short = batch_memory(model, SEARCH.replace(max_source_length=8), "float32")
    assert short.usual == short.longest


def test_fewer_keys_and_additive_scores_are_counted():
    plain = batch_memory(transformer(), SEARCH, "float32").longest
    grouped = transformer(num_key_value_heads=2)
    assert batch_memory(grouped, SEARCH, "float32").longest < plain
    additive = transformer(attention="additive")
    assert batch_memory(additive, SEARCH, "float32").longest > plain


def test_an_ensemble_takes_what_its_members_take():
    members = [transformer(), transformer(num_decoder_layers=2)]
    together = batch_memory(Ensemble(members), SEARCH, "float32")
    alone = [batch_memory(member, SEARCH, "float32").longest for member in members]
    assert together.longest == sum(alone)


def test_a_server_holds_two_versions_and_four_batches(tmp_path):
    (tmp_path / "variables").mkdir()
    (tmp_path / "variables" / "data").write_bytes(bytes(3 * MIB))
    memory = server_memory(tmp_path, BatchMemory(10 * MIB, 100 * MIB, 96))
    graphs = memory.version - 3 * MIB
    assert memory[1:] == (10 * MIB, 100 * MIB, 96)
    more = memory._replace(version=memory.version + 64 * MIB)
    assert more.most - memory.most == 2 * 64 * MIB
    longer = memory._replace(longest_batch=132 * MIB)
    assert longer.most - memory.most == 4 * 32 * MIB
    assert graphs > 0 and memory.usual % (64 * MIB) == memory.most % (64 * MIB) == 0
    assert memory.usual < memory.most
    assert ServerMemory(1, 20, 10, 96).most == ServerMemory(1, 20, 10, 96).usual
