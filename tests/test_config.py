"""Options: what they accept, what they refuse, JSON, presets."""

import dataclasses
import json
import math
import re
import typing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import (
    CausalLayer,
    DataConfig,
    DecoderLayer,
    DecodingConfig,
    EncoderConfig,
    EncoderLayer,
    LanguageModelConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)
from keras_transformer.config.run_config import (
    FINE_TUNING,
    PRESETS,
    WARMUP_SHARE,
    preset_for,
)
from tests.tiny_run import in_a_process

SECTIONS = (
    TransformerConfig, TokenizerConfig, DataConfig, TrainingConfig, DecodingConfig,
)  # fmt: skip
# Every part differs from its defaults.
RUN = RunConfig(
    model=TransformerConfig.preset("tiny", key_dim=13, norm_first=True),
    tokenizer=TokenizerConfig(vocabulary_size=5000, algorithm="unigram"),
    data=DataConfig(batch_tokens=1000),
    training=TrainingConfig(max_minutes=2.5, max_updates=70, optimizer="adamw"),
    decoding=DecodingConfig(beam_size=5),
)


def test_json_is_plain_complete_and_read_back(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(RUN.to_json(), encoding="utf-8")
    again = RunConfig.load(path)
    assert again == RUN != RunConfig()
    values = json.loads(RUN.to_json())
    assert list(values) == ["model", "tokenizer", "data", "training", "decoding"]
    for name, part in values.items():
        fields = dataclasses.fields(getattr(RUN, name))
        assert list(part) == [field.name for field in fields]
    assert (values["model"]["key_dim"], values["model"]["value_dim"]) == (13, None)


def test_a_file_gives_what_it_names_and_no_defaults(tmp_path):
    path = tmp_path / "config.json"
    values = {"training": {"epochs": 3}, "model": {"d_ff": 7}}
    path.write_text(json.dumps(values), encoding="utf-8")
    assert RunConfig.given_in(path) == values
    assert RunConfig.load(path) == RunConfig().with_options(epochs=3, d_ff=7)


BAD_FILES = {
    "[" * 10**6: "not valid JSON: ",
    '{"data": {"max_length": ' + "9" * 5000 + "}}": "not valid JSON: ",
    '{\n  "training": {\n    "epochs": ,\n  }\n}': r"config\.json:3: not valid JSON: ",
    '{"training": {"epochs": "3"}}': "`epochs` must be int. Received: epochs='3'",
    '{"training": {"epochs": 0}}': "`epochs` must be at least 1. Received: epochs=0$",
    '{"training": {"learning_rate": NaN}}': "`learning_rate` must be finite",
    '{"training": {"learning_rate": -1e999}}': "`learning_rate` must be finite",
    '{"training": {"epoch": 3}}': "`TrainingConfig` has no option 'epoch'. Known",
    '{"decoding": {"beam_size": 1001}}': "`beam_size` must be at most 1000",
    '{"decoding": {"max_source_length": 10000000}}': "must be at most 1000000",
    '{"optimizer": {}}': "`RunConfig` has no option 'optimizer'",
    "[]": "`RunConfig` needs a dictionary of options",
    '{"model": null}': "`TransformerConfig` needs a dictionary of options",
    '{"data": "tiny"}': "`DataConfig` needs a dictionary of options",
}


@pytest.mark.parametrize("content", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_bad_file_is_named(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises((TypeError, ValueError), match=BAD_FILES[content]) as caught:
        RunConfig.load(path)
    assert str(path) in str(caught.value)


REFUSED = {
    # A bool is no number, and nothing is converted but an integer to a float.
    "be int. Received: d_model=True": (TransformerConfig, {"d_model": True}),
    "be int. Received: d_model=512.0": (TransformerConfig, {"d_model": 512.0}),
    "`key_dim` must be int or None": (TransformerConfig, {"key_dim": 64.0}),
    "`dropout_rate` must be float": (TransformerConfig, {"dropout_rate": True}),
    "`norm_first` must be bool": (TransformerConfig, {"norm_first": 1}),
    "`activation` must be str": (TransformerConfig, {"activation": 3}),
    "`max_minutes` must be float or None": (TrainingConfig, {"max_minutes": "5"}),
    "`data` must be DataConfig": (RunConfig, {"data": {"batch_tokens": 9}}),
    # Bounds, choices, and numbers that are none.
    "`num_heads` must be at least 1": (TransformerConfig, {"num_heads": 0}),
    "`dropout_rate` must be below 1.0": (TransformerConfig, {"dropout_rate": 1.0}),
    "`dropout_rate` must be finite": (TransformerConfig, {"dropout_rate": math.nan}),
    "`max_minutes` must be finite": (TrainingConfig, {"max_minutes": math.inf}),
    "`max_minutes` must be above 0.0": (TrainingConfig, {"max_minutes": 0}),
    "`tied_embeddings` must be one of 'three-way', 'two-way', 'none'. Received: "
    "tied_embeddings='all'": (TransformerConfig, {"tied_embeddings": "all"}),
    "must be at most 1000000": (TokenizerConfig, {"vocabulary_size": 2**31}),
    "`seed` must be at most 4294967295": (TrainingConfig, {"seed": 2**64 - 1}),
    # Options that do not go together.
    "`d_model` must be a multiple of `num_heads` unless `key_dim` is given. Received: "
    "d_model=10, num_heads=3": (TransformerConfig, {"d_model": 10, "num_heads": 3}),
    "Three-way `tied_embeddings` needs one joint": (
        TransformerConfig, {"source_vocabulary_size": 31, "target_vocabulary_size": 29},
    ),
    "tied_embeddings='three-way', joint_vocabulary=False": (
        RunConfig, {"tokenizer": TokenizerConfig(joint_vocabulary=False)},
    ),
    "must be different ids below": (TransformerConfig, {"start_id": 2}),
    "must be 0, 1, 2 and 3. Received: (9, 1, 2, 3)": (
        RunConfig, {"model": TransformerConfig(pad_id=9)},
    ),
    "Received: 306 tokens, max_positions=60": (
        RunConfig, {"model": TransformerConfig(positions="learned", max_positions=60)},
    ),
    "`learning_rate` must be given unless": (TrainingConfig, {"schedule": "cosine"}),
    "`decay_steps` needs schedule='cosine'": (TrainingConfig, {"decay_steps": 9}),
    "`jit_compile` must not be True": (
        TrainingConfig, {"jit_compile": True, "distribute": "mirrored"},
    ),
    "`n_best` must be from 1 to `beam_size`": (DecodingConfig, {"n_best": 5}),
    "`min_output_length` must not exceed": (
        DecodingConfig, {"min_output_length": 3, "max_output_length": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_an_option_cannot_be_is_said(words):
    config_class, options = REFUSED[words]
    with pytest.raises((TypeError, ValueError)) as caught:
        config_class(**options)
    assert words in str(caught.value)


def test_what_looks_alike_is_accepted():
    assert TransformerConfig(dropout_rate=0).dropout_rate == 0
    assert TransformerConfig(d_model=10, num_heads=3, key_dim=7).key_dim == 7
    assert TrainingConfig(seed=2**32 - 1).seed == 2**32 - 1
    separate = TransformerConfig(
        source_vocabulary_size=31, target_vocabulary_size=29, tied_embeddings="two-way"
    )
    tokenizer = TokenizerConfig(joint_vocabulary=False)
    assert RunConfig(model=separate, tokenizer=tokenizer).model is separate


def test_numbers_of_numpy_are_numbers():
    config = TransformerConfig(d_model=np.int64(24), num_heads=np.uint8(3))
    changed = config.replace(dropout_rate=np.float32(0.25), d_ff=np.int32(7))
    assert changed == TransformerConfig(
        d_model=24, num_heads=3, dropout_rate=0.25, d_ff=7
    )
    assert TransformerConfig.from_dict(json.loads(changed.to_json())) == changed
    layer = EncoderLayer(np.int64(2), np.int16(8), dropout_rate=np.float32(0.5))
    assert (
        layer.get_config()
        == EncoderLayer(2, 8, dropout_rate=0.5, name=layer.name).get_config()
    )
    for wrong in (np.float32(24), np.bool_(True), np.array([24])):
        with pytest.raises(TypeError, match="`d_model` must be int. Received"):
            TransformerConfig(d_model=wrong)


def test_options_and_rules_need_no_docstrings():
    """Python's -OO leaves none."""
    modules = "keras_transformer.config, keras_transformer.text.cleaning"
    in_a_process("-OO", "-c", f"import {modules}").check_returncode()


@pytest.mark.parametrize("config_class", (*SECTIONS, RunConfig))
def test_options_are_frozen_and_copied_with_changes(config_class):
    config = config_class()
    name = dataclasses.fields(config)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, name, None)
    assert config.replace() == config and hash(config) == hash(config_class())
    words = f"`{config_class.__name__}` has no option 'x'"
    with pytest.raises(ValueError, match=words):
        config.replace(x=3)


RATES = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")


def rates_of(config):
    """Of a layer with these options, which is where rates follow another."""
    layer_class = CausalLayer if hasattr(config, "attention") else EncoderLayer
    layer = layer_class(**config.layer_options())
    return tuple(getattr(layer, name) for name in RATES)


@pytest.mark.parametrize(
    "config_class", (EncoderConfig, LanguageModelConfig, RunConfig)
)
def test_other_rates_of_dropout_follow_the_first_unless_they_are_given(config_class):
    def made(config, **options):
        is_run = isinstance(config, RunConfig)
        return config.with_options(**options) if is_run else config.replace(**options)

    for options, changes, wanted in (
        ({}, {}, (0.1, 0.1, 0.1)),
        ({}, {"dropout_rate": 0.0}, (0.0, 0.0, 0.0)),
        ({"dropout_rate": 0.4}, {"d_ff": 7}, (0.4, 0.4, 0.4)),
        ({"attention_dropout_rate": 0.1}, {"dropout_rate": 0.3}, (0.3, 0.1, 0.3)),
        (
            {"attention_dropout_rate": 0.0},
            {"attention_dropout_rate": None},
            (0.1, 0.1, 0.1),
        ),
    ):
        config = made(config_class(), **options)
        # JSON holds what was given, so that a file is changed as the object is.
        for one in (config, config_class.from_dict(json.loads(config.to_json()))):
            assert one == config
            changed = made(one, **changes)
            if config_class is not RunConfig:
                assert dataclasses.replace(one, **changes) == changed
            model = changed.model if config_class is RunConfig else changed
            assert rates_of(model) == wanted


def test_a_layer_drops_nothing_unless_it_is_told_and_its_rates_follow_in_a_copy():
    def rates_in(layer):
        layer.build((None, None, 6))
        parts = layer.self_attention.dropout, layer.feed_forward.dropout_rate
        return (layer.dropouts[0].rate, *parts)

    layer = EncoderLayer(2, 8)
    assert rates_in(layer) == (0.0, 0.0, 0.0)
    config = layer.get_config() | {"dropout_rate": 0.3}
    assert rates_in(EncoderLayer.from_config(config)) == (0.3, 0.3, 0.3)
    config |= {"attention_dropout_rate": 0.1}
    assert rates_in(EncoderLayer.from_config(config)) == (0.3, 0.1, 0.3)


def test_no_two_sections_have_an_option_of_one_name():
    names = [field.name for part in SECTIONS for field in dataclasses.fields(part)]
    assert len(names) == len(set(names))
    changed = RunConfig().with_options(d_ff=7, epochs=3, beam_size=1)
    parts = changed.model.d_ff, changed.training.epochs, changed.decoding.beam_size
    assert parts == (7, 3, 1)
    with pytest.raises(ValueError, match="no option 'epoch'"):
        RunConfig().with_options(epoch=3)


SIZES = "num_encoder_layers num_decoder_layers d_model d_ff num_heads dropout_rate"


PUBLISHED = {
    "tiny": (4, 4, 128, 256, 4, 0.1),
    "small": (3, 3, 256, 1024, 4, 0.1),
    # Vaswani et al., 2017, Table 3: N, d_model, d_ff, h, P_drop.
    "base": (6, 6, 512, 2048, 8, 0.1),
    "big": (6, 6, 1024, 4096, 16, 0.3),
}


def test_sizes_and_defaults_are_the_published_ones():
    for name, sizes in PUBLISHED.items():
        config = TransformerConfig.preset(name)
        assert tuple(getattr(config, size) for size in SIZES.split()) == sizes
        assert TransformerConfig.preset(name, d_ff=7).d_ff == 7
    with pytest.raises(ValueError, match="be one of tiny, small, base, big, student"):
        TransformerConfig.preset("huge")
    assert TransformerConfig() == TransformerConfig.preset("base")
    training, decoding = TrainingConfig(), DecodingConfig()
    # Sections 5.3, 5.4 and 6.1.
    assert (training.optimizer, training.warmup_steps) == ("adam", 4000)
    assert (training.label_smoothing, training.average_checkpoints) == (0.1, 5)
    assert (decoding.beam_size, decoding.length_penalty) == (4, 0.6)
    assert decoding.max_extra_length == 50


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_what_its_row_says_and_nothing_else(name):
    row = dict(PRESETS[name])
    sizes = TransformerConfig.PRESETS[row.pop("sizes")]
    del row["most_pairs"]
    assert RunConfig.preset(name) == RunConfig().with_options(**sizes | row)
    assert RunConfig.preset(name, epochs=3, top_k=4).training.epochs == 3
    assert f'"{name}"' in RunConfig.preset.__doc__


def test_the_number_of_pairs_chooses_a_preset():
    counts = [1, 5_000, 20_000, 29_000, 112_841, 10**6, 10**9]
    names = "micro micro tiny tiny small base base".split()
    assert [preset_for(count) for count in counts] == names
    micro = RunConfig.preset("micro").tokenizer
    for few, pieces in ((40, 300), (1_000, 500), (5_000, 2_000)):
        assert micro.size_for(few) == pieces
    assert micro.replace(vocabulary_size=700).size_for(40) == 700
    with pytest.raises(ValueError, match="one of micro, tiny, small, base, big"):
        RunConfig.preset("huge")
    assert RunConfig().with_options(**FINE_TUNING).training.schedule == "constant"


def test_updates_are_planned_from_epochs_batches_and_limits():
    for options, batches, planned in (
        ({"epochs": 20}, 100, 2000),
        ({"epochs": 20, "gradient_accumulation_steps": 3}, 100, 666),
        ({"epochs": 20, "max_updates": 70}, 100, 70),
        ({"epochs": 1, "gradient_accumulation_steps": 9}, 2, 1),
    ):
        assert TrainingConfig(**options).planned_updates(batches) == planned


def test_a_warm_up_is_a_share_of_the_run_and_keeps_its_peak():
    run = RunConfig().with_options(d_model=128, num_heads=4, warmup_steps=400)
    assert run.fitted_to(int(400 / WARMUP_SHARE)) == run
    fitted = run.fitted_to(100).training
    assert fitted.warmup_steps == 20
    assert math.isclose(fitted.learning_rate, (128 * 400) ** -0.5)
    assert run.fitted_to(1).training.warmup_steps == 1
    cosine = run.with_options(schedule="cosine", learning_rate=1e-3)
    assert cosine.fitted_to(100).training == cosine.training.replace(
        warmup_steps=20, decay_steps=80
    )
    assert cosine.with_options(decay_steps=7).fitted_to(9999).training.decay_steps == 7


def test_the_page_on_training_shows_the_presets():
    page = (Path(__file__).parents[1] / "docs" / "training.md").read_text("utf-8")
    page = page.partition("## Presets")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w.*) \|$", page, re.MULTILINE)
    columns = zip(*(row.split(" | ") for row in rows), strict=True)
    cells = {name.strip("`"): list(cells) for name, *cells in columns}
    assert list(cells) == ["preset", *PRESETS]
    for name, preset in PRESETS.items():
        config = RunConfig.preset(name)
        model, training = config.model, config.training
        rate, other = rates_of(model)[1:]
        assert rate == other
        shown = [
            f"{model.num_encoder_layers}+{model.num_decoder_layers}", model.d_model,
            config.tokenizer.most_pieces,
            config.data.batch_tokens or "4,096; GPU 25,000",
            "yes" if model.norm_first else "no", model.dropout_rate,
            rate, training.warmup_steps,
            training.learning_rate or "the paper's", training.epochs,
            training.average_checkpoints, config.decoding.length_penalty,
        ]  # fmt: skip
        texts = [f"{x:,}" if isinstance(x, int) else str(x) for x in shown]
        assert cells[name][1:] == texts
        if math.isfinite(preset["most_pairs"]):
            assert cells[name][0] == f"{preset['most_pairs']:,}"


# Kinds of attention and of positions that go together, and those that do not.

CONFIGS = (TransformerConfig, EncoderConfig, LanguageModelConfig)
LAYERS = (EncoderLayer, DecoderLayer, CausalLayer)


TYPED = (
    (TransformerConfig, "positions"),
    (TransformerConfig, "decoder_self_attention"),
    (EncoderConfig, "positions"),
    (LanguageModelConfig, "positions"),
    (LanguageModelConfig, "attention"),
)


@pytest.mark.parametrize(("config_class", "name"), TYPED)
def test_the_type_of_an_option_has_its_choices(config_class, name):
    hint = str(typing.get_type_hints(config_class)[name])
    choices = config_class.__dataclass_fields__[name].metadata["choices"]
    assert re.findall(r"'([\w-]+)'", hint) == [*choices]


def test_heads_of_keys_that_do_not_divide_are_refused():
    message = "`num_heads` must be a multiple of `num_key_value_heads`"
    for make in (*CONFIGS, *(partial(x, d_ff=5) for x in LAYERS)):
        with pytest.raises(ValueError, match=message):
            make(num_heads=8, num_key_value_heads=3)


@pytest.mark.parametrize("config_class", CONFIGS)
def test_rotary_positions_need_an_even_width_of_heads(config_class):
    for sizes in ({"key_dim": 5}, {"d_model": 24}):
        with pytest.raises(ValueError, match="`key_dim` must be even with rotary"):
            config_class(positions="rotary", **sizes)
    config_class(positions="rotary", d_model=24, key_dim=4)


SSRUS = (
    partial(TransformerConfig, decoder_self_attention="ssru"),
    partial(LanguageModelConfig, attention="ssru"),
    *(partial(x, 8, 5, attention="ssru") for x in (CausalLayer, DecoderLayer)),
)


@pytest.mark.parametrize("make", SSRUS)
def test_an_ssru_has_no_positions_inside(make):
    for positions in ("rotary", "alibi"):
        with pytest.raises(ValueError, match="`positions` must be vectors .*='ssru'"):
            make(positions=positions)
    make(num_key_value_heads=2)


def test_a_kind_of_attention_is_one_of_two():
    for layer_class in (CausalLayer, DecoderLayer):
        with pytest.raises(ValueError, match="`attention` must be one of dot-prod"):
            layer_class(8, 5, attention="global")
    for make in (EncoderConfig, partial(EncoderLayer, 8, 5), TransformerConfig):
        with pytest.raises((TypeError, ValueError), match="attention"):
            make(attention="ssru")
