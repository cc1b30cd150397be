"""Files that lie about a model, damaged ones, and good ones of every kind."""

from __future__ import annotations

import json
import re
import zipfile

import keras
import numpy as np
import pytest

from keras_transformer import (
    FeedForward,
    Transformer,
    TransformerConfig,
    Translator,
)
from keras_transformer.models.loading import load_seq2seq
from tests import tiny_run

VOCABULARY = {"source_vocabulary_size": 53, "target_vocabulary_size": 53}
SMALL = TransformerConfig(
    num_encoder_layers=1, num_decoder_layers=2, d_model=10, d_ff=14, num_heads=2,
    **VOCABULARY,
)  # fmt: skip


@pytest.fixture
def path(tmp_path):
    """A good model.keras of a Transformer."""
    path = tmp_path / "model.keras"
    Transformer(SMALL).save(path)
    return path


def rewrite(path, name, change, compression=zipfile.ZIP_STORED):
    """Changes the content of one member of an archive."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[name] = change(members[name])
    with zipfile.ZipFile(path, "w", compression) as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def claim(path, **sizes):
    def change(content):
        values = json.loads(content)
        values["config"]["config"] |= sizes
        return json.dumps(values).encode()

    rewrite(path, "config.json", change)


CLAIMS = {
    "`d_model` must be at most 1048576. Received: d_model=1000000000": dict(
        d_model=10**9
    ),
    "`num_encoder_layers` must be at most 1000": dict(num_encoder_layers=10**6),
    "`source_vocabulary_size` must be at most 100000000": dict(
        source_vocabulary_size=2**31, target_vocabulary_size=2**31
    ),
    "`num_heads` must be at most 1048576": dict(num_heads=10**12),
    "`d_ff` must be int. Received: d_ff='12'": dict(d_ff="12"),
    "has no option 'depth'": dict(depth=3),
    # Each size may be, but all of them are not in the file.
    "the sizes need 2,002,510 weights, and only": dict(d_ff=33_333),
    "bytes are there. Received: d_model=1000000, d_ff=1000000": dict(
        d_ff=10**6, d_model=10**6
    ),
    "Received: source_vocabulary_size=90000, target_vocabulary_size=90000": dict(
        source_vocabulary_size=90_000, target_vocabulary_size=90_000
    ),
    "weights, and only": dict(num_decoder_layers=999),
    "max_positions=100000000": dict(positions="learned", max_positions=10**8),
}


@pytest.mark.one_case
@pytest.mark.parametrize("message", CLAIMS)
def test_what_is_claimed_is_checked_before_it_is_built(path, monkeypatch, message):
    claim(path, **CLAIMS[message])
    monkeypatch.setattr(keras.saving, "load_model", pytest.fail)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load_seq2seq(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("member", ["config.json", "metadata.json", "model.weights.h5"])
def test_a_bomb_is_not_unpacked(path, monkeypatch, member):
    rewrite(path, member, lambda content: content + b" " * 2**22, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**19
    monkeypatch.setattr(zipfile.ZipFile, "read", pytest.fail)
    with pytest.raises(
        ValueError, match=f"{path} is damaged, .* {member} in it claims"
    ):
        load_seq2seq(path)


def test_a_directory_of_members_that_lies_is_noticed(path, monkeypatch):
    claim(path, d_ff=10**6, num_decoder_layers=100)
    infolist = zipfile.ZipFile.infolist

    def lying(archive):
        members = infolist(archive)
        for member in members:
            member.file_size = member.compress_size = 10**13
        return members

    monkeypatch.setattr(zipfile.ZipFile, "infolist", lying)
    monkeypatch.setattr(keras.saving, "load_model", pytest.fail)
    with pytest.raises(ValueError, match="in it claims 10,000,000,000,000 bytes"):
        load_seq2seq(path)


def other_class(path, name):
    message = f"{path} must hold a `Transformer` or another `Seq2Seq`. Received: {name}"
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        load_seq2seq(path)


def test_another_class_is_refused_before_it_is_built(tmp_path, monkeypatch):
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path)
    monkeypatch.setattr(keras.saving, "load_model", pytest.fail)
    other_class(path, "Sequential")
    inputs = keras.Input((3, 4))
    keras.Model(inputs, FeedForward(5)(inputs)).save(path)
    other_class(path, "Functional")
    # One of this package's that is a layer.
    rewrite(
        path,
        "config.json",
        lambda _: json.dumps(keras.saving.serialize_keras_object(FeedForward(5))),
    )
    other_class(path, "FeedForward")


class Unregistered(keras.Model):
    """A class that nobody knows when the file is read."""

    def build(self, input_shape):
        self.weight = self.add_weight(shape=(3,))


def test_an_unknown_class_is_left_to_keras(tmp_path, monkeypatch):
    path = tmp_path / "model.keras"
    model = Unregistered()
    model.build((None, 3))
    model.save(path)
    with pytest.raises(ValueError, match="Could not locate class 'Unregistered'"):
        load_seq2seq(path)
    monkeypatch.setattr(keras.saving, "load_model", lambda path, compile: model)
    other_class(path, "Unregistered")


def test_damage_anywhere_is_one_kind_of_error_or_harmless(path):
    content = path.read_bytes()
    weights = load_seq2seq(path).get_weights()
    rng, refused = np.random.default_rng(8), 0
    places = [0, 1, *rng.integers(2, len(content), 12), len(content) - 1]
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 0x55
        for damaged in (content[:place], bytes(flipped)):
            path.write_bytes(damaged)
            try:
                found = load_seq2seq(path).get_weights()
            except ValueError as error:
                assert str(error).startswith(f"{path}")
                assert "\n" not in str(error)
                refused += 1
            else:
                for weight, expected in zip(found, weights, strict=True):
                    np.testing.assert_array_equal(weight, expected)
    assert refused >= 1.5 * len(places)


@pytest.mark.one_case
@pytest.mark.parametrize(
    "content", [b"null", b"[]", b"{", b"[" * 10**6, b"{}", b'{"config": 3}']
)
def test_a_bad_configuration_is_one_line(path, content):
    rewrite(path, "config.json", lambda _: content)
    with pytest.raises(ValueError, match=f"^{path} is damaged, or no model that can"):
        load_seq2seq(path)


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path):
    for path in (tmp_path, tmp_path / "missing.keras"):
        with pytest.raises(OSError, match=str(path)):
            load_seq2seq(path)


def test_a_translator_says_the_same(path, tmp_path):
    tiny_run.translator().save(tmp_path / "run")
    (tmp_path / "run" / "model.keras").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="model.keras is damaged"):
        Translator.load(tmp_path / "run")


@pytest.mark.one_case
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "mixed_bfloat16"])
def test_good_models_load(tmp_path, dtype):
    model = Transformer(SMALL, dtype=dtype)
    model.compile("adam", "mse")
    model.save(tmp_path / "model.keras")
    loaded = load_seq2seq(tmp_path / "model.keras")
    assert type(loaded) is Transformer
    assert loaded.dtype_policy.name == dtype
    for weight, expected in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(
            keras.ops.cast(weight, "float32"), keras.ops.cast(expected, "float32")
        )


@keras.saving.register_keras_serializable(package="tests")
class SmallFeedForward(Transformer):
    """Far fewer weights than its sizes say."""

    def make_small(self, name):
        return keras.layers.Dense(self.config.d_model, name=name)

    def make_encoder_layer(self, name):
        layer = super().make_encoder_layer(name)
        layer.make_feed_forward = self.make_small
        return layer

    def make_decoder_layer(self, name):
        layer = super().make_decoder_layer(name)
        layer.make_feed_forward = self.make_small
        return layer


def test_a_subclass_with_fewer_weights_than_its_sizes_say_loads(tmp_path):
    config = SMALL.replace(d_ff=10**5)
    model = SmallFeedForward(config)
    model.save(tmp_path / "model.keras")
    assert (tmp_path / "model.keras").stat().st_size < config.fewest_weights()
    loaded = load_seq2seq(tmp_path / "model.keras")
    assert type(loaded) is SmallFeedForward
    assert loaded.count_params() == model.count_params()


OPTIONS = dict(
    tied_embeddings=["three-way", "two-way", "none"],
    num_encoder_layers=[1, 3],
    num_decoder_layers=[1, 2],
    d_ff=[3, 30],
    key_dim=[None, 1, 7],
    value_dim=[None, 1, 9],
    num_key_value_heads=[None, 1],
    positions=["sinusoidal", "learned"],
    norm_first=[False, True],
    use_bias=[False, True],
    normalize_embeddings=[False, True],
    decoder_self_attention=["attention", "ssru"],
    output_bias=[False, True],
)


@pytest.mark.one_case
@pytest.mark.parametrize("seed", range(12))
def test_the_fewest_weights_are_nearly_all_and_never_more(seed):
    rng = np.random.default_rng(seed)
    chosen = {
        name: values[rng.integers(len(values))] for name, values in OPTIONS.items()
    }
    config = SMALL.replace(**chosen)
    count = Transformer(config).count_params()
    assert 0.8 * count < config.fewest_weights() <= count


def test_hashing_has_no_matrices_of_keys():
    config = SMALL.replace(attention="lsh")
    weights = Transformer(config).weights
    kept = [weight for weight in weights if weight.name != "hash_vectors"]
    count = sum(int(np.prod(weight.shape)) for weight in kept)
    assert 0.8 * count < config.fewest_weights() <= count


def test_the_papers_models_have_nearly_the_fewest_weights():
    """Of a known number each: what is left are the norms and the biases."""
    base = TransformerConfig()
    assert base.fewest_weights() == 37000 * 512 + 18 * 4 * 512**2 + 12 * 2 * 512 * 2048
    big = TransformerConfig.preset("big")
    assert big.fewest_weights() == 37000 * 1024 + 18 * 4 * 2**20 + 12 * 8 * 2**20
