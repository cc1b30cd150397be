"""BLEU in the loop, best checkpoints, exports: with a real model and `model.fit`."""

from __future__ import annotations

import csv
import io
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from keras_transformer import Corpus, Translator, open_pairs, train
from keras_transformer.config import TrainingConfig
from keras_transformer.evaluation import evaluate
from keras_transformer.export import ExportedTranslator
from keras_transformer.export.model_card import RunFacts
from keras_transformer.export.saved_model import TRAINING_DATA
from keras_transformer.training import compiled_model
from keras_transformer.training.bleu import ValidationBleu
from keras_transformer.training.checkpoints import load_average
from keras_transformer.training.ema import averaged_weights
from keras_transformer.training.export_best import ExportBest
from keras_transformer.training.monitor import Monitor
from keras_transformer.training.selection import check_selection, make_selection
from keras_transformer.training.summary import FactsSoFar
from tests import tiny_run


def config_of(**training):
    size = tiny_run.tokenizers().source.vocabulary_size
    sizes = {"source_vocabulary_size": size, "target_vocabulary_size": size}
    return tiny_run.CONFIG.replace(
        model=tiny_run.CONFIG.model.replace(**sizes),
        training=tiny_run.CONFIG.training.replace(**training),
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """The training pairs and the validation pairs."""
    folder = tmp_path_factory.mktemp("text")
    pairs = {"train": tiny_run.TRAIN, "valid": tiny_run.VALID}
    return [
        open_pairs(tiny_run.write_pairs(folder / f"{name}.tsv", rows))
        for name, rows in pairs.items()
    ]


@pytest.fixture(scope="module")
def corpora(texts):
    return [
        Corpus(text, tiny_run.tokenizers(), tiny_run.CONFIG.data, seed=1)
        for text in texts
    ]


class Run:
    """A model in training, its selection and what both wrote."""

    def __init__(self, texts, directory, **training):
        keras.utils.set_random_seed(1)
        self.config = config_of(**training)
        self.model = compiled_model(self.config)
        self.translator = Translator(
            self.model, tiny_run.tokenizers(), self.config.decoding
        )
        self.stream = io.StringIO()
        console = Console(file=self.stream, width=200)
        self.selection = make_selection(
            self.config, directory, self.translator, texts[1], console
        )

    def fit(self, corpora, *more, epochs=2):
        training, validation = corpora
        history = self.model.fit(
            training.dataset(),
            validation_data=validation.dataset(shuffle=False),
            epochs=epochs,
            callbacks=[*self.selection.callbacks, *more],
            shuffle=False,
            verbose=0,
        )
        return history.history

    def find(self, kind):
        (callback,) = (c for c in self.selection.callbacks if isinstance(c, kind))
        return callback


def greedy_bleu(run, pairs):
    """A second way to the score: a new translator of the model as it stands."""
    greedy = run.config.decoding.replace(beam_size=1)
    translator = Translator(run.model, tiny_run.tokenizers(), greedy)
    return evaluate(translator, pairs).bleu


# Enough training that some words are right.
LEARNING = {"learning_rate_scale": 2.0, "warmup_steps": 20}


def test_val_bleu_is_what_evaluate_gives_for_the_first_pairs(texts, corpora, tmp_path):
    run, scores = Run(texts, tmp_path, monitor="bleu", bleu_sentences=7, **LEARNING), []

    def compare(epoch, logs):
        # Of so little training some epochs score 0, which any pairs would.
        if logs["val_bleu"] > 1 and not scores:
            first = greedy_bleu(run, tiny_run.VALID[:7])
            scores.extend([logs["val_bleu"], first, greedy_bleu(run, tiny_run.VALID)])

    comparison = keras.callbacks.LambdaCallback(on_epoch_end=compare)
    history = run.fit(corpora, comparison, epochs=10)
    assert len(history["val_bleu"]) == 10
    logged, first, every = scores
    assert logged == pytest.approx(first, abs=1e-9)
    assert every != pytest.approx(first)


def test_bleu_comes_in_two_forms_and_says_what_they_are(texts, corpora, tmp_path):
    run = Run(texts, tmp_path, monitor="bleu", bleu_sentences=7, **LEARNING)
    history = run.fit(corpora, epochs=2)
    bleu = run.find(ValidationBleu)
    pairs = tiny_run.VALID[:7]
    lowered = evaluate(
        lambda texts: [text.lower() for text in bleu.translator(texts)],
        [(source, target.lower()) for source, target in pairs],
    )
    assert history["val_bleu_lowercase"][-1] == pytest.approx(lowered.bleu)
    (line,) = [x for x in run.stream.getvalue().splitlines() if "case:" in x]
    assert "val_bleu of 7 sentences, greedy search: nrefs:1|case:mixed" in line
    assert "val_bleu_lowercase: nrefs:1|case:lc" in line
    # A state of a version that had one figure: both are computed anew.
    state = bleu.state()
    assert state["lowercase_bleu"] == history["val_bleu_lowercase"][-1]
    bleu.restore({"scored_at": state["scored_at"], "bleu": 1.0})
    logs = {}
    bleu.on_epoch_end(2, logs)
    assert logs["val_bleu"] == history["val_bleu"][-1]


@pytest.mark.slow
def test_bleu_comes_every_so_many_updates_and_leaves_the_training_alone(
    texts, corpora, tmp_path
):
    plain, scored = Run(texts, tmp_path / "a"), None
    plain_history = plain.fit(corpora)
    scored = Run(texts, tmp_path / "b", bleu_updates=3)
    scored_history = scored.fit(corpora)
    for a, b in zip(plain.model.variables, scored.model.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    assert plain_history["loss"] == scored_history["loss"]
    updates = int(scored.model.optimizer.iterations)
    assert updates == 2 * corpora[0].num_batches > 6
    lines = scored.stream.getvalue().splitlines()
    shown = [int(line.split()[1]) for line in lines if line.startswith("updates")]
    assert shown == list(range(3, updates + 1, 3))
    (events,) = (tmp_path / "b" / "tensorboard" / "validation").iterdir()
    steps = [
        (value.tag, event.step)
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
    ]
    assert steps == [("evaluation_bleu_vs_iterations", step) for step in shown]


@pytest.mark.slow
def test_one_graph_serves_all_scores(texts, corpora, tmp_path):
    run = Run(texts, tmp_path, bleu_updates=1)
    run.fit(corpora)
    bleu = run.find(ValidationBleu)
    (function,) = bleu.translator._functions.values()
    assert function.experimental_get_tracing_count() == 1


@pytest.mark.slow
def test_a_score_is_not_given_twice_for_one_state_of_the_model(
    texts, corpora, tmp_path, monkeypatch
):
    run = Run(texts, tmp_path, bleu_updates=corpora[0].num_batches)
    scored, bleu = [], run.find(ValidationBleu)
    score = bleu._score
    monkeypatch.setattr(bleu, "_score", lambda n: (scored.append(n), score(n)))
    run.fit(corpora)
    batches = corpora[0].num_batches
    assert scored == [batches, 2 * batches]


def test_several_updates_a_call_do_not_miss_a_score(texts, tmp_path, monkeypatch):
    run = Run(texts, tmp_path, bleu_updates=10)
    bleu, scored = run.find(ValidationBleu), []
    bleu.set_model(run.model)
    monkeypatch.setattr(
        bleu, "_score", lambda n: (scored.append(n), setattr(bleu, "_scored_at", n))
    )
    monkeypatch.setattr(bleu, "_write", lambda n: None)
    bleu.on_train_begin()
    # Calls of four batches, of which the fourth call's made no update, and of eleven.
    updates_after = {3: 4, 7: 8, 11: 12, 15: 12, 19: 16, 23: 20, 34: 31}
    for batch, updates in updates_after.items():
        run.model.optimizer.iterations.assign(updates)
        bleu.on_train_batch_end(batch)
    assert scored == [12, 20, 31]
    again = Run(texts, tmp_path, bleu_updates=10).find(ValidationBleu)
    again.restore(json.loads(json.dumps(bleu.state())))
    assert again._scored_at == 31


@pytest.mark.slow
def test_the_average_is_what_is_scored(texts, corpora, tmp_path):
    options = {"monitor": "bleu", "ema_decay": 0.9, **LEARNING}
    run = Run(texts, tmp_path, **options)
    scores = []

    class Score(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 7:
                scores.append(greedy_bleu(run, tiny_run.VALID))
                with averaged_weights(self.model):
                    scores.append(greedy_bleu(run, tiny_run.VALID))

    history = run.fit(corpora, Score(), epochs=8)
    assert history["val_bleu"][-1] == pytest.approx(scores[1])
    assert scores[0] != pytest.approx(scores[1])


@pytest.mark.slow
def test_the_checkpoints_are_those_of_the_best_epochs(texts, corpora, tmp_path):
    run = Run(texts, tmp_path, average="best", monitor="loss", **LEARNING)
    weights = []

    class Weights(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            weights.append(self.model.get_weights())

    losses = run.fit(corpora, Weights(), epochs=6)["val_loss"]
    best = sorted(range(6), key=losses.__getitem__)[:2]
    load_average(run.model, run.selection.checkpoints.paths())
    for weight, *values in zip(
        run.model.get_weights(), *(weights[epoch] for epoch in best), strict=True
    ):
        mean = np.mean(np.stack(values).astype("float64"), axis=0)
        np.testing.assert_array_equal(weight, mean.astype("float32"))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_each_new_best_is_exported_as_the_next_version(tmp_path, monkeypatch):
    translator, exported = tiny_run.translator(), []

    def export(path, run):
        path.mkdir(parents=True)
        exported.append(path.name)
        return path

    monkeypatch.setattr(translator, "export", export)
    stream = io.StringIO()
    console = Console(file=stream, width=500)
    directory = tmp_path / "export" / "tiny"
    (directory / "7").mkdir(parents=True)  # somebody else's
    (directory / ".8-1234.partial").mkdir()

    def callback():
        made = ExportBest(translator, Monitor("loss"), directory, console)
        made.set_model(translator.model)
        return made

    first = callback()
    for epoch, loss in enumerate([3.0, 4.0, 2.0, 2.0]):
        first.on_epoch_end(epoch, {"val_loss": loss})
    assert exported == ["8", "9"]
    second = callback()
    second.restore(json.loads(json.dumps(first.state())))
    for epoch, loss in enumerate([2.5, 1.0, 0.5], start=4):
        second.on_epoch_end(epoch, {"val_loss": loss})
    assert exported == ["8", "9", "10", "11"]
    names = sorted(path.name for path in directory.iterdir())
    assert names == [".8-1234.partial", ".exported.json", "10", "11", "7"]
    assert f"exported {directory / '11'}: val_loss 0.5000" in stream.getvalue()
    # Killed before the state was saved: 10 and 11 are the run's all the same, and a
    # version that somebody put there since is not.
    (directory / "12").mkdir()
    third = callback()
    third.restore(first.state())
    third.on_epoch_end(4, {"val_loss": 1.5})
    names = sorted(path.name for path in directory.iterdir())
    assert names == [".8-1234.partial", ".exported.json", "11", "12", "13", "7"]


@pytest.mark.parametrize(
    "names",
    [
        '["{mine}", 1]', '["../../mine", 1]', '["../tiny/1/../../../mine", 1]',
        '["2", 1]', "[2.0, 1]", "[true, 1]", "[5, 1]", "[-7, 1]", "[{nines}, 1]",
    ],
)  # fmt: skip
def test_only_a_version_right_beside_the_record_is_removed(tmp_path, names):
    directory, mine = tmp_path / "export" / "tiny", tmp_path / "mine"
    for path in (mine, directory / "1", directory / "2", directory / "-7"):
        path.mkdir(parents=True)
    (directory / "5").symlink_to(mine)
    record = directory / ".exported.json"
    record.write_text(names.format(mine=mine, nines="9" * 400))
    before = sorted(tmp_path.rglob("*"))
    stream = io.StringIO()
    console = Console(file=stream, width=500)
    callback = ExportBest(tiny_run.translator(), Monitor("loss"), directory, console)
    callback._prune(3)
    assert sorted(tmp_path.rglob("*")) == before
    assert stream.getvalue().startswith(
        f"warning: {record} lists something that is not a version"
    )
    callback._prune(4)
    assert sorted({*before} - {*tmp_path.rglob("*")}) == [directory / "1"]
    assert json.loads(record.read_text()) == [3, 4]


@pytest.mark.parametrize("content", ["", "{}", "7", "[[", "[" * 9**5, '"12"', "null"])
def test_a_damaged_record_of_exports_removes_nothing(tmp_path, content):
    (tmp_path / "1").mkdir()
    (tmp_path / ".exported.json").write_text(content)
    console = Console(file=io.StringIO(), width=500)
    callback = ExportBest(tiny_run.translator(), Monitor("loss"), tmp_path, console)
    callback._prune(3)
    assert (tmp_path / "1").is_dir()
    assert (tmp_path / ".exported.json").read_text() == "[3]"
    assert "warning: " in console.file.getvalue()


@pytest.mark.slow
def test_the_export_translates_as_the_best_epoch_did(texts, corpora, tmp_path):
    directory = tmp_path / "en-de"
    run = Run(texts, directory, export_best=True, monitor="loss", **LEARNING)
    digests = {"training": "0123", "validation": "4567"}
    run.find(ExportBest).facts = FactsSoFar(run.config, digests, *corpora, {})
    history = run.fit(corpora, epochs=1)
    sources = [source for source, _ in tiny_run.VALID]
    exported = ExportedTranslator(directory / "export" / "en-de")
    assert exported(sources) == run.translator(sources)
    assert len(run.selection.callbacks) == 2
    # What is known by then is in the export.
    card = (exported.path / "README.md").read_text("utf-8")
    assert f"- {run.model.updates:,} updates, 1 epochs\n" in card
    assert f"val_loss {history['val_loss'][0]:.4f}" in card
    assert "- training: 40 pairs, " in card and f"| {sources[0]} | " in card
    data = json.loads((exported.path / TRAINING_DATA).read_text("utf-8"))
    assert [data[split]["fingerprint"] for split in digests] == ["0123", "4567"]
    assert [data[split]["pairs"] for split in digests] == [40, 8]


def test_a_run_says_what_it_knows_when_it_exports(texts, tmp_path, monkeypatch):
    exported = []

    def export(self, path, run):
        # A reader of the card finds what the run's summary will say in the end.
        exported.append(run)
        path.mkdir(parents=True)
        return path

    monkeypatch.setattr(Translator, "export", export)
    config = tiny_run.CONFIG.replace(
        training=tiny_run.CONFIG.training.replace(epochs=1, export_best=True)
    )
    train(texts[0], tmp_path / "run", config, texts[1], Console(quiet=True))
    (facts,) = exported
    ended = RunFacts.of(tmp_path / "run")
    assert facts.data == ended.data and facts.config == ended.config
    assert facts.scores == ()
    same = ("model", "data", "updates", "epochs", "machine", "versions", "examples")
    summary = json.loads(json.dumps(facts.summary))
    assert [summary[name] for name in same] == [ended.summary[name] for name in same]
    assert 0 < facts.summary["seconds"] <= ended.summary["seconds"]
    last = ended.summary["last_epoch"]["val_loss"]
    assert facts.summary["last_epoch"]["val_loss"] == pytest.approx(last)


NEEDS_VALIDATION = {
    "`average` 'best'": {"average": "best"},
    "`monitor` 'bleu'": {"monitor": "bleu"},
    "`patience`": {"patience": 2},
    "`bleu_updates`": {"bleu_updates": 5},
    "`export_best`": {"export_best": True},
}


@pytest.mark.parametrize("name", NEEDS_VALIDATION)
def test_an_option_that_needs_validation_pairs_says_so(name):
    options = TrainingConfig(**NEEDS_VALIDATION[name])
    with pytest.raises(ValueError, match=f"^{name} needs validation pairs.*no valid"):
        check_selection(options, validated=False)
    check_selection(options, validated=True)


def test_the_default_options_need_no_validation_pairs(texts, tmp_path):
    check_selection(TrainingConfig(), validated=False)
    run = Run([texts[0], None], tmp_path)
    assert run.selection.callbacks == [run.selection.checkpoints]


def test_exporting_needs_tensorflow(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="`export_best` needs the TensorFlow backend"):
        check_selection(TrainingConfig(export_best=True), validated=True)
    check_selection(TrainingConfig(), validated=True)


@pytest.mark.slow
def test_a_checkpoint_of_a_run_fits_a_model_that_was_never_compiled(
    texts, corpora, tmp_path
):
    run = Run(texts, tmp_path)
    run.fit(corpora, epochs=1)
    fresh = type(run.model)(run.config.model)
    load_average(fresh, run.selection.checkpoints.paths())
    for a, b in zip(fresh.get_weights(), run.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_average_of_an_optimizer_of_ones_own_is_what_is_validated(texts, tmp_path):
    """As it is what is saved; within an optimizer that scales the loss too."""
    inner = keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.9)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0)
    config = tiny_run.CONFIG.replace(
        training=tiny_run.CONFIG.training.replace(epochs=1, average_checkpoints=1)
    )
    translator = train(
        texts[0], tmp_path / "run", config, texts[1], Console(quiet=True),
        optimizer=optimizer,
    )  # fmt: skip
    with open(tmp_path / "run" / "log.csv", encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    corpus = Corpus(texts[1], translator.tokenizers, config.data)
    dataset = corpus.dataset(shuffle=False)
    saved = translator.model.evaluate(dataset, verbose=0, return_dict=True)["loss"]
    assert float(row["val_loss"]) == pytest.approx(saved, rel=1e-5)
