"""Options: what they accept, what they refuse and how they say so."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest

from keras_transformer import (
    DataConfig,
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)

CONFIGS = (
    TransformerConfig,
    TokenizerConfig,
    DataConfig,
    TrainingConfig,
    DecodingConfig,
    RunConfig,
)
# Every part differs from its defaults.
RUN = RunConfig(
    model=TransformerConfig.preset("tiny", key_dim=13, norm_first=True),
    tokenizer=TokenizerConfig(vocabulary_size=5000, algorithm="unigram"),
    data=DataConfig(batch_tokens=1000),
    training=TrainingConfig(max_minutes=2.5, max_updates=70, optimizer="sgd"),
    decoding=DecodingConfig(beam_size=5),
)


def test_json_round_trip():
    again = RunConfig.from_json(RUN.to_json())
    assert again == RUN
    assert again != RunConfig()
    assert isinstance(again.model, TransformerConfig)
    assert again.to_json() == RUN.to_json()


def test_json_is_plain_and_complete():
    values = json.loads(RUN.to_json())
    assert list(values) == ["model", "tokenizer", "data", "training", "decoding"]
    for name, part in values.items():
        fields = dataclasses.fields(getattr(RUN, name))
        assert list(part) == [field.name for field in fields]
    assert values["model"]["key_dim"] == 13
    assert values["model"]["value_dim"] is None


def test_missing_keys_keep_their_defaults(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"training": {"epochs": 3}}', encoding="utf-8")
    config = RunConfig.load(path)
    assert config == RunConfig(training=TrainingConfig(epochs=3))


@pytest.mark.parametrize(
    "name, most",
    {
        "beam_size": 1000,
        "no_repeat_ngram_size": 10**6,
        "max_source_length": 10**6,
        "max_extra_length": 10**6,
    }.items(),
)
def test_a_search_that_memory_could_not_hold_is_refused(tmp_path, name, most):
    path = tmp_path / "decoding.json"
    path.write_text(json.dumps({name: most}), encoding="utf-8")
    assert getattr(DecodingConfig.load(path), name) == most
    for value in (most + 1, 10**9, 10**15):
        path.write_text(json.dumps({name: value}), encoding="utf-8")
        message = f"{path}: `{name}` must be at most {most}. Received: {name}={value}"
        with pytest.raises(ValueError, match=re.escape(message) + "$"):
            DecodingConfig.load(path)


@pytest.mark.parametrize("content", ["[" * 10**6, '{"beam_size": ' + "9" * 5000 + "}"])
def test_json_that_python_cannot_read_names_the_file(tmp_path, content):
    path = tmp_path / "decoding.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="decoding.json: not valid JSON: "):
        DecodingConfig.load(path)


def test_a_file_gives_what_it_names_and_no_defaults(tmp_path):
    path = tmp_path / "config.json"
    values = {"training": {"epochs": 3}, "model": {"d_ff": 7}}
    path.write_text(json.dumps(values), encoding="utf-8")
    assert RunConfig.given_in(path) == values
    path.write_text('{"training": {"epochs": 0}}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json: `epochs` must be at least 1"):
        RunConfig.given_in(path)


def test_invalid_json_names_file_and_line(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{\n  "training": {\n    "epochs": ,\n  }\n}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json:3: not valid JSON: "):
        RunConfig.load(path)


@pytest.mark.parametrize("values", ([], "tiny", None, 3))
def test_anything_but_an_object_is_refused(values):
    with pytest.raises(TypeError, match="`RunConfig` is read from an object"):
        RunConfig.from_dict(values)
    with pytest.raises(TypeError, match="`DataConfig` is read from an object"):
        RunConfig.from_dict({"data": values})


@pytest.mark.parametrize("config_class", CONFIGS)
def test_unknown_keys_are_refused_with_the_known_ones(config_class):
    known = ", ".join(field.name for field in dataclasses.fields(config_class))
    message = (
        f"`{config_class.__name__}` has no option 'widht', 'x'. Known options: {known}"
    )
    with pytest.raises(ValueError) as caught:
        config_class.from_dict({"widht": 3, "x": 4})
    assert str(caught.value) == message


def test_unknown_keys_are_refused_in_a_part_a_preset_and_a_replacement():
    with pytest.raises(ValueError, match="`TrainingConfig` has no option 'epoch'"):
        RunConfig.from_dict({"training": {"epoch": 3}})
    with pytest.raises(ValueError, match="`TransformerConfig` has no option 'depth'"):
        TransformerConfig.preset("tiny", depth=3)
    with pytest.raises(ValueError, match="`DataConfig` has no option 'size'"):
        DataConfig().replace(size=3)


@pytest.mark.parametrize(
    "config_class, name, value, kinds",
    (
        (TransformerConfig, "d_model", True, "int"),
        (TransformerConfig, "d_model", 512.0, "int"),
        (TransformerConfig, "d_model", "512", "int"),
        (TransformerConfig, "d_model", None, "int"),
        (TransformerConfig, "key_dim", 64.0, "int or None"),
        (TransformerConfig, "key_dim", False, "int or None"),
        (TransformerConfig, "dropout_rate", "0.1", "float"),
        (TransformerConfig, "dropout_rate", True, "float"),
        (TransformerConfig, "norm_first", 1, "bool"),
        (TransformerConfig, "norm_first", "yes", "bool"),
        (TransformerConfig, "activation", 3, "str"),
        (TokenizerConfig, "algorithm", None, "str"),
        (TrainingConfig, "max_minutes", "5", "float or None"),
        (TrainingConfig, "optimizer", ["adam"], "str"),
        (RunConfig, "data", TrainingConfig(), "DataConfig"),
        (RunConfig, "data", {"batch_tokens": 9}, "DataConfig"),
    ),
)
def test_wrong_types_are_refused(config_class, name, value, kinds):
    with pytest.raises(TypeError) as caught:
        config_class(**{name: value})
    assert str(caught.value) == f"`{name}` must be {kinds}. Received: {name}={value!r}"


def test_an_integer_is_a_fine_float():
    config = TransformerConfig(dropout_rate=0)
    assert config.dropout_rate == 0
    assert TrainingConfig(max_minutes=5).max_minutes == 5


@pytest.mark.parametrize(
    "config_class, name, value, rule",
    (
        (TransformerConfig, "num_encoder_layers", 0, "at least 1"),
        (TransformerConfig, "d_ff", -1, "at least 1"),
        (TransformerConfig, "key_dim", 0, "at least 1"),
        (TransformerConfig, "dropout_rate", 1.0, "below 1.0"),
        (TransformerConfig, "dropout_rate", -0.1, "at least 0.0"),
        (TransformerConfig, "dropout_rate", math.nan, "finite"),
        (TransformerConfig, "pad_id", -1, "at least 0"),
        (
            TransformerConfig, "positions", "rotating",
            "one of 'sinusoidal', 'sinusoidal-halves', 'sinusoidal-marian', 'learned', "
            "'rotary', 'alibi'",
        ),
        (
            TransformerConfig, "tied_embeddings", "all",
            "one of 'three-way', 'two-way', 'none'",
        ),
        (TokenizerConfig, "character_coverage", 0.5, "at least 0.9"),
        (TokenizerConfig, "algorithm", "word", "one of 'bpe', 'unigram'"),
        (DataConfig, "batch_tokens", 0, "at least 1"),
        (DataConfig, "bad_line_budget", -1, "at least 0"),
        (TrainingConfig, "max_minutes", math.inf, "finite"),
        (TrainingConfig, "learning_rate_scale", -math.inf, "finite"),
        (TrainingConfig, "label_smoothing", 1, "below 1.0"),
        (
            TrainingConfig, "optimizer", "newton",
            "one of 'adam', 'adamw', 'lion', 'nadam', 'adamax', 'adafactor', 'lamb', "
            "'sgd', 'momentum', 'adagrad', 'rmsprop'",
        ),
        (DecodingConfig, "beam_size", 0, "at least 1"),
        (DecodingConfig, "length_penalty", math.nan, "finite"),
    ),
)  # fmt: skip
def test_values_out_of_range_are_refused(config_class, name, value, rule):

    message = f"`{name}` must be {rule}. Received: {name}={value!r}"
    with pytest.raises(ValueError) as caught:
        config_class(**{name: value})
    assert str(caught.value) == message


@pytest.mark.parametrize("number", ("NaN", "Infinity", "-Infinity", "1e999"))
def test_numbers_that_are_not_finite_are_refused_in_json(number):
    text = f'{{"training": {{"learning_rate_scale": {number}}}}}'
    with pytest.raises(ValueError, match="`learning_rate_scale` must be finite"):
        RunConfig.from_json(text)


SIZES = (
    "num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads",
    "dropout_rate",
)  # fmt: skip


@pytest.mark.parametrize(
    "name, sizes",
    (
        ("tiny", (4, 4, 128, 256, 4, 0.1)),
        ("small", (3, 3, 256, 1024, 4, 0.1)),
        # Vaswani et al., 2017, Table 3: N, d_model, d_ff, h, P_drop.
        ("base", (6, 6, 512, 2048, 8, 0.1)),
        ("big", (6, 6, 1024, 4096, 16, 0.3)),
    ),
)
def test_presets_have_the_published_sizes(name, sizes):
    config = TransformerConfig.preset(name)
    assert tuple(getattr(config, size) for size in SIZES) == sizes
    assert config.norm_first is False
    assert config.activation == "relu"
    assert config.positions == "sinusoidal"


@pytest.mark.parametrize("name", ("base", "big"))
def test_heads_of_the_paper_are_64_wide(name):
    """Table 3: d_k = d_v = 64 in both models; 37000 joint pieces (section 5.1)."""
    config = TransformerConfig.preset(name)
    assert config.key_dim is None
    assert config.d_model // config.num_heads == 64
    assert config.source_vocabulary_size == config.target_vocabulary_size == 37000


def test_defaults_are_the_papers():
    assert TransformerConfig() == TransformerConfig.preset("base")
    training, decoding = TrainingConfig(), DecodingConfig()
    # Sections 5.3, 5.4 and 6.1.
    assert (training.optimizer, training.warmup_steps) == ("adam", 4000)
    assert (training.label_smoothing, training.average_checkpoints) == (0.1, 5)
    assert (decoding.beam_size, decoding.length_penalty) == (4, 0.6)
    assert decoding.max_extra_length == 50


def test_preset_takes_overrides_and_keeps_itself():
    config = TransformerConfig.preset("tiny", d_model=64, dropout_rate=0.3)
    assert (config.d_model, config.d_ff, config.dropout_rate) == (64, 256, 0.3)
    assert TransformerConfig.preset("tiny").d_model == 128


def test_unknown_preset_is_refused():
    message = "`preset` must be one of tiny, small, base, big. Received: 'huge'"
    with pytest.raises(ValueError) as caught:
        TransformerConfig.preset("huge")
    assert str(caught.value) == message


def test_width_that_heads_do_not_divide_is_refused():
    message = "`d_model` must be a multiple of `num_heads` unless `key_dim` is given. "
    with pytest.raises(ValueError) as caught:
        TransformerConfig(d_model=10, num_heads=3)
    assert str(caught.value) == message + "Received: d_model=10, num_heads=3"
    assert TransformerConfig(d_model=10, num_heads=3, key_dim=7).key_dim == 7


def test_workers_that_draw_other_pieces_are_refused():
    data, training = DataConfig(subword_sampling=0.1), TrainingConfig()
    assert RunConfig(data=data, training=training).data.subword_sampling == 0.1
    with pytest.raises(ValueError, match="`subword_sampling` must be 0 .*=0.1"):
        RunConfig(data=data, training=training.replace(distribute="multi_worker"))


def test_three_way_tying_needs_one_vocabulary():
    sizes = {"source_vocabulary_size": 31, "target_vocabulary_size": 29}
    with pytest.raises(ValueError, match="Three-way `tied_embeddings` needs one joint"):
        TransformerConfig(**sizes)
    for tied in ("two-way", "none"):
        assert TransformerConfig(**sizes, tied_embeddings=tied).d_model == 512


@pytest.mark.parametrize(
    "ids",
    (
        {"pad_id": 1},
        {"start_id": 2},
        {"end_id": 3},
        {"unknown_id": 0},
        {"unknown_id": 29},
        # The smaller vocabulary decides.
        {"unknown_id": 30, "source_vocabulary_size": 31, "tied_embeddings": "none"},
    ),
)
def test_special_ids_must_differ_and_lie_in_the_vocabulary(ids):
    options = {"source_vocabulary_size": 29, "target_vocabulary_size": 29} | ids
    with pytest.raises(ValueError, match="must be four different ids below"):
        TransformerConfig(**options)


def test_replace_makes_a_checked_copy():
    config = TransformerConfig.preset("tiny")
    wider = config.replace(d_model=256)
    assert (wider.d_model, wider.d_ff, config.d_model) == (256, 256, 128)
    with pytest.raises(ValueError, match="`d_model` must be a multiple of `num_heads`"):
        config.replace(d_model=130)
    with pytest.raises(TypeError, match="`d_model` must be int"):
        config.replace(d_model="256")


@pytest.mark.parametrize("config_class", CONFIGS)
def test_options_are_frozen(config_class):
    config = config_class()
    name = dataclasses.fields(config)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, name, None)
    assert hash(config) == hash(config_class())


@pytest.mark.parametrize("config_class", CONFIGS[:-1])
def test_every_option_has_a_line_of_help(config_class):
    for field in dataclasses.fields(config_class):
        assert len(field.metadata["help"]) > 3, field.name


def test_separate_vocabularies_cannot_share_one_matrix():
    separate = TokenizerConfig(joint_vocabulary=False)
    message = (
        "one joint vocabulary.*tied_embeddings=.three-way., joint_vocabulary=False"
    )
    with pytest.raises(ValueError, match=message):
        RunConfig(tokenizer=separate)
    model = TransformerConfig(tied_embeddings="two-way")
    assert RunConfig(model=model, tokenizer=separate).tokenizer is separate


def test_learned_positions_cover_training_and_decoding():
    learned = {"positions": "learned", "max_positions": 60}
    data, decoding = DataConfig(max_length=60), DecodingConfig(max_source_length=10)
    model = TransformerConfig(**learned)
    assert RunConfig(model=model, data=data, decoding=decoding).model is model
    with pytest.raises(ValueError, match="61 tokens, max_positions=60"):
        RunConfig(model=model, data=data.replace(max_length=61), decoding=decoding)
    with pytest.raises(ValueError, match="62 tokens, max_positions=60"):
        longer = decoding.replace(max_source_length=12)
        RunConfig(model=model, data=data, decoding=longer)


def test_a_run_has_the_special_ids_of_its_tokenizer():
    model = TransformerConfig(pad_id=9)
    with pytest.raises(ValueError, match=r"0, 1, 2 and 3. Received: \(9, 1, 2, 3\)"):
        RunConfig(model=model)
