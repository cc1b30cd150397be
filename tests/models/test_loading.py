"""Files that lie about a model, damaged ones, and good ones of every kind."""

import json
import re
import zipfile

import keras
import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.models.loading import load_model, read_config

SMALL = TransformerConfig(
    num_encoder_layers=1, num_decoder_layers=2, d_model=10, d_ff=14, num_heads=2,
    source_vocabulary_size=53, target_vocabulary_size=53,
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
}


@pytest.mark.one_case("`d_model` must be at most 1048576. Received: d_model=1000000000")
@pytest.mark.parametrize("message", CLAIMS)
def test_what_is_claimed_is_checked_before_it_is_built(path, monkeypatch, message):
    claim(path, **CLAIMS[message])
    monkeypatch.setattr(keras.saving, "load_model", pytest.fail)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_config(path)


def test_the_options_of_a_model_are_read_alone(path, monkeypatch):
    monkeypatch.setattr(keras.saving, "load_model", pytest.fail)
    assert read_config(path) == SMALL


def test_only_a_transformer_has_options(tmp_path):
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path)
    with pytest.raises(ValueError, match="must hold a `Transformer`.*Sequential$"):
        read_config(path)
    assert isinstance(load_model(path), keras.Sequential)


class Unregistered(keras.Model):
    """A class that nobody knows when the file is read."""

    def build(self, input_shape):
        self.weight = self.add_weight(shape=(3,))


def test_an_unknown_class_is_left_to_keras(tmp_path):
    path = tmp_path / "model.keras"
    model = Unregistered()
    model.build((None, 3))
    model.save(path)
    with pytest.raises(TypeError, match="^Could not locate class 'Unregistered'"):
        load_model(path)


def test_what_the_machine_says_is_no_damage(path, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(Transformer, "build", fail)
    with pytest.raises(RuntimeError, match="^CUDA out of memory$"):
        load_model(path)


def test_damage_anywhere_is_one_kind_of_error_or_harmless(path):
    content = path.read_bytes()
    weights = load_model(path).get_weights()
    rng, refused = np.random.default_rng(8), 0
    places = [0, 1, *rng.integers(2, len(content), 6), len(content) - 1]
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 0x55
        for damaged in (content[:place], bytes(flipped)):
            path.write_bytes(damaged)
            try:
                found = load_model(path).get_weights()
            except ValueError as error:
                assert str(error).startswith(f"{path}")
                assert "\n" not in str(error)
                refused += 1
            else:
                for weight, expected in zip(found, weights, strict=True):
                    np.testing.assert_array_equal(weight, expected)
    assert refused >= 1.5 * len(places)


def test_a_checksum_is_read_before_the_weights(path):
    with zipfile.ZipFile(path) as archive:
        weights = archive.read("model.weights.h5")
    content = bytearray(path.read_bytes())
    content[content.index(weights) + len(weights) // 2] ^= 0x55
    path.write_bytes(content)
    with pytest.raises(ValueError, match="bad checksum of model.weights.h5$"):
        load_model(path)


@pytest.mark.one_case('{"config": 3}')
@pytest.mark.parametrize(
    "content", [b"null", b"[]", b"{", b"[" * 10**6, b"{}", b'{"config": 3}']
)
def test_a_bad_configuration_is_one_line(path, content):
    rewrite(path, "config.json", lambda _: content)
    with pytest.raises(ValueError, match=f"^{path} is damaged or not a Keras model"):
        load_model(path)


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path):
    for path in (tmp_path, tmp_path / "missing.keras"):
        with pytest.raises(OSError, match=str(path)):
            load_model(path)
