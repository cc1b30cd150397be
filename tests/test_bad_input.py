"""Bad input: what a stranger gets wrong, and the clear error for it."""

from __future__ import annotations

import gzip
import re

import pytest

import keras_transformer as kt
from keras_transformer import cli
from tests import tiny_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Good and bad files."""
    folder = tmp_path_factory.mktemp("bad")
    good = tiny_run.write_pairs(folder / "good.tsv").read_bytes()
    contents = {
        "three.en": b"a\nb\nc\n",
        "two.de": b"a\nb\n",
        "empty.tsv": b"",
        "latin1.tsv": b"dog\tHund\nb\xe4r\tbear\n",
        "latin1.json": b'{"model": "\xe4"}',
        "no_tab.tsv": b"dog\tHund\ndog Hund\n",
        "no_target.tsv": b"dog\tHund\nbear\t \n",
        "cut.tsv.gz": gzip.compress(good)[:-20],
        "damaged.tsv.gz": b"\x1f\x8b" + b"\x07" * 50,
        "no_json.json": b'{\n"model": oops}',
        "unknown.json": b'{"training": {"epoch": 3}}',
        "unknown_section.json": b'{"optimizer": {}}',
        "text.json": b'{"training": {"epochs": "3"}}',
        "list.json": b"[1, 2]",
        "null.json": b'{"model": null}',
        "full/notes.txt": b"mine",
        "broken/model.keras": b"no model",
        "broken/decoding.json": b"{}",
        "broken/tokenizer/tokenizer.json": b"{}",
        "stopped/config.json": b"{}",
        "begun/data.json": b'{"command": "keras-transformer train --run a"}',
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(content)
    return folder


# {f} is the folder above, {o} an empty one for output, {s} a SavedModel, {r} a run.
GOOD = "train --train {f}/good.tsv --run {o}/run --vocabulary-size 300 "
RAY = "translate {s} --ray-workers "
STRICT = "--run {o}/run --vocabulary-size 300 --bad-line-budget 0"
COMMANDS = {
    # Options.
    GOOD + "--d-model 10 --num-heads 3": "`d_model` must be a multiple of `num_heads`",
    GOOD + "--dropout-rate 1.0": "argument --dropout-rate: must be below 1.0",
    GOOD + "--dropout-rate -0.1": "argument --dropout-rate: must be at least 0.0",
    GOOD + "--warmup-steps 0": "argument --warmup-steps: must be at least 1",
    GOOD + "--length-penalty -1": "argument --length-penalty: must be at least 0.0",
    GOOD + "--activation sharp": "activation",
    GOOD + "--schedule cosine": "`learning_rate` must be given unless `schedule`",
    # Files of options.
    GOOD + "--config {f}/missing.json": "missing.json: No such file or directory",
    GOOD + "--config {f}/full": "full: Is a directory",
    GOOD + "--config {f}/no_json.json": "no_json.json:2: not valid JSON",
    GOOD + "--config {f}/latin1.json": "latin1.json",
    GOOD + "--config {f}/unknown.json": "`TrainingConfig` has no option 'epoch'",
    GOOD + "--config {f}/unknown_section.json": "`RunConfig` has no option 'optimizer'",
    GOOD + "--config {f}/text.json": "`epochs` must be int. Received: epochs='3'",
    GOOD + "--config {f}/list.json": "`RunConfig` needs a dictionary of options",
    GOOD
    + "--config {f}/null.json": "`TransformerConfig` needs a dictionary of options",
    # Training text.
    "train --train {f}/missing.tsv --run {o}/run": "missing.tsv: No such file",
    "train --train {f}/full --run {o}/run": "full must be a regular file",
    "train --train {f}/empty.tsv --run {o}/run": "There are no pairs in ",
    "train --train {f}/three.en {f}/two.de --run {o}/run": "has 3 lines but",
    "train --train {f}/two.de {f}/two.de {f}/two.de --run {o}/run": "two aligned files",
    "train --train {f}/latin1.tsv " + STRICT: "latin1.tsv:2: source is not valid UTF-8",
    "train --train {f}/no_tab.tsv " + STRICT: "no_tab.tsv:2: no tab",
    "train --train {f}/no_target.tsv " + STRICT: "no_target.tsv:2: target is empty",
    "train --train {f}/cut.tsv.gz " + STRICT: "cut.tsv.gz is a damaged gzip file",
    "train --train {f}/damaged.tsv.gz " + STRICT: "damaged.tsv.gz is a damaged gzip",
    GOOD + "--valid {f}/missing.tsv": "missing.tsv: No such file",
    GOOD + "--valid {f}/no_tab.tsv --bad-line-budget 0": "no_tab.tsv:2: no tab",
    GOOD + "--max-length 2": "The corpus has no good pair",
    GOOD + "--vocabulary-size 7": "argument --vocabulary-size: must be at least 8",
    "train --train {f}/good.tsv --run {f}/full": "needs a new or empty directory",
    "train --train {f}/good.tsv --run {f}/good.tsv": "needs a new or empty directory",
    "quickstart --run {f}/full --saved-models {o}": "needs a new or empty directory",
    # Models.
    "translate {f}/missing dog": "missing is not a directory",
    "translate {f}/full dog": "full holds no SavedModel",
    "translate {f}/stopped dog": "stopped holds no",
    "translate {f}/begun dog": "begun is an unfinished run. To finish it: keras-tr",
    "translate {f}/broken dog": "model.keras",
    "translate {s} --beam-size 2 dog": "Received: beam_size",
    "translate {r} --beam-size 0 dog": "argument --beam-size: must be at le",
    "evaluate {f}/full --test {f}/good.tsv": "full holds no SavedModel",
    "export {f}/full --output {o}/1": "full holds no",
    "export {s} --output {o}/1": "holds no trained translator",
    "export {r} --output {s}": "exists, and is never overwritten",
    "export {r} --output {o}/1 --n-best 9": "`n_best` must be from 1 to `beam",
    "export {r} --output {o}/1 --top-p 0": "argument --top-p: must be above 0.0",
    "export {r} --output {o}/1 --dtype int8": "argument --dtype: invalid choice",
    # Serving.
    "serve {r}": "run is a training run. First: keras-transformer export ",
    "serve {f}/full": "full must hold SavedModels in directories",
    "serve {s}": "1 must hold SavedModels in directories",
    "serve {s}/.. --port 65536": "`port` must be from 0 to 65535",
    # Text to translate.
    "translate {s} --input {f}/good.tsv dog": "or `--input`, not both",
    "translate {s} --input {f}/missing": "missing: No such file or directory",
    "translate {s} --input {f}/full": "full: Is a directory",
    "translate {s} --input {f}/latin1.tsv": "latin1.tsv:2: not valid UTF-8",
    "translate {s} dog --output {f}/full": "full is a directory",
    "translate": "arguments are required: MODEL",
    "export": "arguments are required: MODEL, --output",
    "translate {s} --n-best 4 dog": "`n_best` must be from 1 to 3, the beam",
    "translate {r} --n-best 3 dog": "`n_best` must be from 1 to 2, the beam",
    RAY + "2 --input {f}/good.tsv --output b --scores": "or `--ray-workers`",
    "translate {s} --input {f}/latin1.tsv --output {o}/out": "not valid UTF-8",
    "translate {s} --input {f}/good.tsv --output {f}/good.tsv": "another file",
    # Ray.
    RAY + "0 --input {f}/good.tsv --output b": "`--ray-workers` must be at least 1",
    RAY + "two": "argument --ray-workers: invalid int value: 'two'",
    RAY + "2 dog": "`--ray-workers` needs `--input` and `--output`",
    "translate {r} --ray-workers 2 --input {f}/good.tsv --output b": "a SavedModel",
    RAY + "2 --input {f}/good.tsv --output b --beam-size 2": "Received: beam_size",
    "evaluate {s} --test {f}/missing.tsv": "missing.tsv: No such file",
    "evaluate {s} --test {f}/no_tab.tsv --output {o}/out": "no_tab.tsv:2: no",
    "evaluate {s} --test {f}/empty.tsv --output {o}/out": "There are no pairs",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_ends_with_one_clear_line_and_leaves_nothing(
    command, folder, tmp_path, tmp_path_factory, capsys
):
    places = {"f": folder, "o": tmp_path}
    if "{s}" in command:
        places["s"] = tiny_run.saved_model(tmp_path_factory)
    if "{r}" in command:
        places["r"] = tiny_run.run_directory(tmp_path_factory)
    before = sorted(folder.rglob("*"))
    try:
        status = cli.main([word.format(**places) for word in command.split()])
    except SystemExit as stop:
        status = stop.code
    lines = capsys.readouterr().err.splitlines()
    if status == 1:
        assert len(lines) == 1
    else:
        assert status == 2
    assert lines[-1].startswith("keras-transformer")
    assert COMMANDS[command] in lines[-1]
    assert "Traceback" not in "".join(lines)
    # An empty directory does no harm: the same command can be given again.
    # The ids of a corpus that was read are kept for the next try.
    files = [path for path in tmp_path.rglob("*") if not path.is_dir()]
    assert not [path for path in files if "corpus" not in path.parts]
    assert sorted(folder.rglob("*")) == before


CALLS = {
    # Text.
    "no SentencePiece model": (
        lambda: kt.Tokenizer(b"nothing"), "is not a SentencePiece model"
    ),
    "nothing to learn from": (
        lambda: kt.Tokenizer.learn([], kt.TokenizerConfig()), "no text to learn"
    ),
    # Translating.
    **{
        f"{texts!r} for texts": (
            lambda texts=texts: tiny_run.translator().translate(texts),
            "`texts` must be a sequence of strings",
        )
        for texts in ("a dog", b"a dog", [b"a dog"], [None], ["a", 1])
    },
    **{
        f"temperature {value}": (
            lambda value=value: tiny_run.translator().sample(["a"], temperature=value),
            "`temperature` must be finite and at least 0",
        )
        for value in (-1.0, float("nan"), float("inf"))
    },
    "two texts and one prefix": (
        lambda: tiny_run.translator().complete(["a", "b"], ["c"]),
        "the same number of texts. Received: 2, 1",
    ),
    "two texts and one target": (
        lambda: tiny_run.translator().score(["a", "b"], ["c"]),
        "the same number of texts. Received: 2, 1",
    ),
    "bytes for a target": (
        lambda: tiny_run.translator().score(["a"], [b"c"]),
        "must be a sequence of strings",
    ),
    "special ids of another tokenizer": (
        lambda: kt.Translator(
            kt.Transformer(tiny_run.model().config.replace(pad_id=3, unknown_id=0)),
            tiny_run.tokenizers(),
        ),
        "must have the same `pad_id`",
    ),
    "more translations than hypotheses": (
        lambda: tiny_run.translator().translate(["a"], n_best=4),
        "from 1 to 3, the beam size or the `n_best` of the export. Received: n_best=",
    ),
    "no translations": (
        lambda: tiny_run.translator().translate(["a"], n_best=0), "`n_best` must be"
    ),
    "no batch": (
        lambda: tiny_run.translator()(["a"], batch_size=0),
        "`batch_size` must be at least 1",
    ),
    "tokenizer of another model": (
        lambda: kt.Translator(
            kt.Transformer(tiny_run.CONFIG.model.replace(
                source_vocabulary_size=299, target_vocabulary_size=299)),
            tiny_run.tokenizers(),
        ),
        "Received: 300 pieces, source_vocabulary_size=299",
    ),
    "learned positions shorter than the longest output": (
        lambda: kt.Translator(
            tiny_run.model(positions="learned", max_positions=9),
            tiny_run.tokenizers(),
        ),
        "306 tokens, max_positions=9",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_call_raises_a_clear_error(name):
    call, fragment = CALLS[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(fragment)):
        call()
