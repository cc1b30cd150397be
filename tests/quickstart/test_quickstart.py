"""The quick start at a tiny size: every part runs, in order."""

from rich.console import Console

from keras_transformer.export import ExportedTranslator
from keras_transformer.quickstart import CONFIG, quickstart


def test_quickstart_trains_exports_and_scores(tmp_path, capsys):
    config = CONFIG.replace(
        model=CONFIG.model.replace(
            num_encoder_layers=1, num_decoder_layers=1, d_model=16, d_ff=16, num_heads=2
        ),
        tokenizer=CONFIG.tokenizer.replace(vocabulary_size=400),
        training=CONFIG.training.replace(epochs=1, max_updates=3),
        decoding=CONFIG.decoding.replace(beam_size=1, max_extra_length=0),
    )
    scores = quickstart(
        tmp_path / "run",
        tmp_path / "saved_models",
        console=Console(width=100),
        config=config,
        sizes={"train": 300, "valid": 20, "test": 10},
    )
    assert scores.sentences == 10
    assert 0 <= scores.bleu <= 100
    printed = capsys.readouterr().out
    assert f"generated test sentences:\nBLEU {scores.bleu:.2f}" in printed
    assert max(map(len, printed.partition("translating ")[2].splitlines()[1:-3])) <= 100
    assert printed.count("    right") + printed.count("    not ") == 6
    lines = (tmp_path / "run" / "test.translations.txt").read_text().splitlines()
    exported = ExportedTranslator(tmp_path / "saved_models" / "quickstart-en-de")
    assert exported.path.name == "1"
    assert len(lines) == 10
    card = (exported.path / "README.md").read_text("utf-8")
    assert f"| generated test sentences | 10 | {scores.bleu:.2f} |" in card
    assert '\nlanguage: ["en", "de"]\n' in card and "# quickstart-en-de\n" in card
