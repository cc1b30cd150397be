"""The example of the recurrent translator, at a tiny size."""

from tests import tiny_run
from tests.test_examples import load


def test_both_models_train_score_and_show_their_attention(tmp_path, capsys):
    example = load("recurrent_translation")
    train = tiny_run.write_pairs(tmp_path / "train.tsv")
    test = str(tiny_run.write_pairs(tmp_path / "test.tsv", tiny_run.VALID))
    config = tiny_run.CONFIG.replace(decoding=example.CONFIG.decoding)
    sizes = {"d_model": 16, "dropout_rate": 0.0}
    example.MODELS = {
        "recurrent": _Preset(example.RecurrentConfig, units=12, **sizes),
        "transformer": _Preset(
            example.TransformerConfig, num_encoder_layers=1, num_decoder_layers=1,
            d_ff=16, num_heads=2, **sizes,
        ),
    }  # fmt: skip
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


class _Preset:
    """Stands for a family of models of which every preset has these sizes."""

    def __init__(self, family, **sizes):
        self.family, self.sizes = family, sizes

    def preset(self, name, **options):
        return self.family(**(options | self.sizes))


def test_pairs_are_drawn_from_the_whole_file(tmp_path):
    sampled = load("recurrent_translation").sampled
    train = tiny_run.write_pairs(tmp_path / "train.tsv")
    drawn = [(p.source, p.target) for p in sampled(train, 9, tmp_path).pairs()]
    assert len(set(drawn)) == 9
    assert set(drawn) < set(tiny_run.TRAIN)
    assert drawn != tiny_run.TRAIN[:9]
