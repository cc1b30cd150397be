"""The example of the recurrent translator, at a tiny size."""

from tests import tiny_run
from tests.test_examples import load


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


def test_pairs_are_drawn_from_the_whole_file(tmp_path):
    sampled = load("recurrent_translation").sampled
    train = tiny_run.write_pairs(tmp_path / "train.tsv")
    drawn = [(p.source, p.target) for p in sampled(train, 9, tmp_path).pairs()]
    assert len(set(drawn)) == 9
    assert set(drawn) < set(tiny_run.TRAIN)
    assert drawn != tiny_run.TRAIN[:9]
