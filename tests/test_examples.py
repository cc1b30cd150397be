"""Every example runs, at a tiny size."""

import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_transformer import Translator
from tests import tiny_run

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_short_and_has_a_test():
    names = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    # test_clients.py runs the clients; files named after the others run them.
    here = {"compose_layers", "fit_arrays", "serve_saved_model", "train_multi30k"}
    clients = {"grpc_client", "litert_rest_client", "rest_client"}
    encoders = {"classify_images", "classify_nodes", "classify_sentences", "tag_words"}
    encoders |= {"caption_images", "classify_graphs", "conformer", "speech"}
    alone = {"language_model", "recurrent_sentences", "recurrent_translation"}
    assert set(names) == here | clients | encoders | alone
    for name in names:
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 100


def test_composed_layers_learn_and_survive_saving(tmp_path):
    example = load("compose_layers")
    model = example.main(["--epochs", "1", "--rows", "64"])
    ids, _ = example.make_data(8, seed=3)
    layer = next(x for x in model.layers if isinstance(x, example.GatedEncoderLayer))
    assert isinstance(layer.feed_forward, example.GatedFeedForward)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(ids), model(ids), atol=1e-6)
    longer = np.pad(ids, [(0, 0), (0, 5)])
    np.testing.assert_allclose(model(longer), model(ids), atol=1e-5)


def test_arrays_reach_fit_and_decoding():
    example = load("fit_arrays")
    (source, target_in), target_out = example.make_data(4, seed=1)
    length = int((source[0] > 0).sum())
    np.testing.assert_array_equal(
        target_out[0, : length - 1], source[0, : length - 1][::-1]
    )
    np.testing.assert_array_equal(target_in[:, 1:length], target_out[:, : length - 1])
    assert 0 <= example.main(["--epochs", "1", "--rows", "128"]) <= 1


@pytest.mark.slow
def test_arrays_are_reversed_after_training():
    assert load("fit_arrays").main([]) > 0.9


def test_the_recipe_trains_and_scores(tmp_path):
    example = load("train_multi30k")
    config = example.CONFIG
    config = config.replace(
        model=config.model.replace(
            num_encoder_layers=1, num_decoder_layers=1, d_model=16, d_ff=32, num_heads=2
        ),
        tokenizer=config.tokenizer.replace(vocabulary_size=400),
        training=config.training.replace(max_updates=2, jit_compile=False),
        decoding=config.decoding.replace(beam_size=1, max_extra_length=3),
    )
    bleu = example.main(["--run", str(tmp_path / "run")], config)
    assert 0 <= bleu <= 100
    assert (tmp_path / "run" / "test.translations.txt").is_file()


class Answers(Translator):
    """A translator that knows its answers, in place of one that is trained."""

    def __init__(self, answers):
        tiny = tiny_run.translator()
        super().__init__(tiny.model, tiny.tokenizers, tiny.config)
        self.answers = answers

    def __call__(self, texts, batch_size=32):
        return [self.answers[text] for text in texts]


def test_the_recipe_gives_the_bleu_worked_by_hand(tmp_path, capsys, monkeypatch):
    example = load("train_multi30k")
    pair = "An old dog", "Der alte Hund rennt schnell über die Wiese"
    translator = Answers({pair[0]: "der alte hund rennt schnell über die Straße"})
    monkeypatch.setattr(example.kt, "train", lambda *arguments: translator)
    text = str(tiny_run.write_pairs(tmp_path / "test.tsv", [pair]))
    splits = [
        word for name in ("train", "valid", "test") for word in (f"--{name}", text)
    ]
    bleu = example.main([*splits, "--run", str(tmp_path)])
    # In lower case the last of eight tokens is wrong: 7/8, 6/7, 5/6 and 4/5 are right.
    assert bleu == pytest.approx(100 * (4 / 8) ** 0.25)
    # As it stands three are: 5 of 8 tokens, 3 of 7 pairs, 2 of 6 and 1 of 5 are right.
    cased = 100 * (5 * 3 * 2 * 1 / (8 * 7 * 6 * 5)) ** 0.25
    printed = capsys.readouterr().out
    assert f"BLEU {cased:.2f}" in printed
    assert f"tokenised, lowercased BLEU {bleu:.2f}" in printed


def test_the_recipe_scores_tokens_in_lower_case():
    score = load("train_multi30k").tokenized_lowercased_bleu
    reference = "Ein Hund läuft, sehr schnell, über die Wiese."
    assert score([reference.upper()], [reference]) == pytest.approx(100)
    # One of eleven tokens is wrong: 10/11, 8/10, 6/9 and 4/8 of the n-grams are right.
    other = "Ein Hund läuft, sehr langsam, über die Wiese."
    expected = 100 * (10 / 11 * 8 / 10 * 6 / 9 * 4 / 8) ** 0.25
    assert score([other], [reference]) == pytest.approx(expected)
