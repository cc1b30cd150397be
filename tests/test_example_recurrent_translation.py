"""The example of the recurrent translator, at a tiny size."""

import math

import pytest

from tests import tiny_run
from tests.test_examples import Answers, load


@pytest.mark.slow
def test_both_models_train_score_and_show_their_attention(tmp_path, capsys):
    example = load("recurrent_translation")
    train = tiny_run.write_pairs(tmp_path / "train.tsv")
    test = str(tiny_run.write_pairs(tmp_path / "test.tsv", tiny_run.VALID))
    config = tiny_run.CONFIG.replace(decoding=example.CONFIG.decoding)
    recurrent = {"d_model": 16, "units": 12}
    transformer = {"d_model": 16, "d_ff": 16, "num_heads": 2}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    example.MODELS = {
        "recurrent": lambda size, **_: example.kt.RecurrentConfig(**recurrent),
        "transformer": lambda size, **_: example.kt.TransformerConfig(
            **transformer, **layers
        ),
    }
    files = ["--train", str(train), "--valid", test, "--test", test]
    options = ["--pairs", "33", "--epochs", "1", "--pictures", str(tmp_path)]
    scores = example.main([*files, *options], config)
    assert list(scores) == ["recurrent", "transformer"]
    printed = capsys.readouterr().out
    assert "33 pairs" in printed
    for name, score in scores.items():
        assert score.sentences == len(tiny_run.VALID)
        assert f"{name}: 0." in printed
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert printed.count("80 tokens to 80 tokens: ") == 2


def test_each_model_gets_the_bleu_worked_by_hand(tmp_path, monkeypatch):
    example = load("recurrent_translation")
    pair = "The old dog", "le vieux chien court très vite ce matin"
    answers = {
        # The first six of eight tokens: all right, and too short by exp(1 - 8 / 6).
        "recurrent": "le vieux chien court très vite",
        # The last of eight is wrong: 7/8, 6/7, 5/6 and 4/5 of the n-grams are right.
        "transformer": "le vieux chien court très vite ce soir",
    }

    def trained(text, directory, config, validation):
        return Answers({pair[0]: answers[directory.name]})

    monkeypatch.setattr(example.kt, "train", trained)
    monkeypatch.setattr(example, "print_times", lambda translator: None)
    text = str(tiny_run.write_pairs(tmp_path / "test.tsv", [pair]))
    files = ["--train", text, "--valid", text, "--test", text]
    scores = example.main([*files, "--pictures", str(tmp_path)])
    found = {name: score.bleu for name, score in scores.items()}
    assert found == pytest.approx(
        {
            "recurrent": 100 * math.exp(1 - 8 / 6),
            "transformer": 100 * (4 / 8) ** 0.25,
        }
    )


def test_pairs_are_drawn_from_the_whole_file(tmp_path):
    sampled = load("recurrent_translation").sampled
    train = tiny_run.write_pairs(tmp_path / "train.tsv")
    drawn = [(p.source, p.target) for p in sampled(train, 9, tmp_path).pairs()]
    assert len(set(drawn)) == 9
    assert set(drawn) < set(tiny_run.TRAIN)
    assert drawn != tiny_run.TRAIN[:9]
