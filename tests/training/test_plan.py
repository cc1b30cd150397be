"""What a run will do and what is refused, found out by reading alone."""

import dataclasses
import io

import keras
import pytest
from rich.console import Console

from keras_transformer import RunConfig
from keras_transformer.text import open_pairs
from keras_transformer.training.plan import Job, check_directory, plan
from tests import tiny_run


def job(options=None, **asked):
    given = {
        "text": open_pairs(tiny_run.TRAIN),
        "config": tiny_run.CONFIG.with_options(**options or {}),
        "validation": open_pairs(tiny_run.VALID),
        "console": Console(quiet=True),
    }
    return Job(**given | asked)


def times(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


def test_a_plan_of_a_finished_run_tells_where_it_goes_on_and_writes_nothing(
    run_directory,
):
    before, screen = times(run_directory), io.StringIO()
    asked = job(console=Console(file=screen, width=200))
    found = plan(asked, run_directory)
    assert "is finished: 12 updates. To train on, raise" in screen.getvalue()
    assert found.is_set_up and found.is_finished and found.state.step == 12
    assert found.state.planned_updates == 12
    longer = dataclasses.replace(asked, config=asked.config.with_options(epochs=4))
    assert not plan(longer, run_directory).is_finished
    assert times(run_directory) == before


def test_a_plan_of_a_new_run_chooses_what_was_not_given(tmp_path):
    found = plan(job(tokenizers=tiny_run.tokenizers()), tmp_path / "new")
    assert (found.state, found.init) == (None, None)
    assert not (found.is_set_up or found.is_finished)
    assert found.config.model.target_vocabulary_size == 308
    assert sorted(found.data) == ["training", "validation"]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options, pieces", [({"robust": False}, 300), ({"vocabulary_size": 400}, 400)]
)
def test_a_preset_has_pieces_for_its_pairs_unless_their_number_is_given(
    options, pieces, tmp_path
):
    found = plan(job(config=RunConfig.preset("small", **options)), tmp_path)
    assert found.config.model.target_vocabulary_size == pieces


def built():
    optimizer = keras.optimizers.SGD()
    optimizer.build([keras.Variable([1.0])])
    return optimizer


REFUSED = {
    "`model` makes its own weights": {"model": keras.Model, "init": "runs/en-de"},
    "`model` .* leave out `init` and `freeze`": {
        "model": keras.Model, "options": {"freeze": "encoder"}
    },
    "`optimizer` must be new.*built=False, ema_decay=0.9": {
        "optimizer": keras.optimizers.SGD(), "options": {"ema_decay": 0.9}
    },
    "`optimizer` must be new.*built=True": {"optimizer": built()},
    "`patience` needs validation pairs": {
        "validation": None, "options": {"patience": 1}
    },
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_go_together_is_no_job(words):
    with pytest.raises(ValueError, match=words):
        job(**REFUSED[words])


WITHOUT_KERAS = """
import sys
from pathlib import Path
from rich.console import Console
from keras_transformer.config import RunConfig
from keras_transformer.text import open_pairs
from keras_transformer.training.plan import Job, plan
directory = Path(sys.argv[1])
config = RunConfig.load(directory / "config.json")
text = open_pairs([("dog", "Hund")])
try:
    plan(Job(text=text, config=config, validation=None, console=Console()), directory)
except ValueError as error:
    print({"keras", "tensorflow"} & set(sys.modules), error)
"""


def test_another_text_is_refused_before_keras_is_loaded(run_directory):
    said = tiny_run.in_a_process("-c", WITHOUT_KERAS, run_directory).stdout
    assert said.startswith(f"set() {run_directory} holds a run with other training")


def test_a_run_that_has_lost_its_options_is_not_begun_anew(tmp_path):
    for name in ("states", "tokenizer"):
        (tmp_path / name).mkdir()
    lost = "has lost config.json and data.json: bring that back"
    with pytest.raises(FileExistsError, match=lost):
        check_directory(tmp_path)
