"""CTranslate2's folders against the formulas in float64, and against CTranslate2."""

from __future__ import annotations

import json

import numpy as np
import pytest
from keras import ops

from keras_transformer.importers import import_ctranslate2
from tests.importers import foreign_others
from tests.importers.witness import ids_of, logits_of, shared_data, with_search
from tests.reference import numpy_marian

NAMES = shared_data("models/aren-transliteration")


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("with_end", [True, False])
def test_the_logits_are_those_of_the_formulas(tmp_path, rng, pre_norm, with_end):
    form = foreign_others.ctranslate2_form(pre_norm=pre_norm, swish=with_end)
    tensors, *pieces = foreign_others.write_ctranslate2(
        tmp_path, rng, form, add_source_eos=with_end
    )
    check_logits(import_ctranslate2(tmp_path), rng, tensors, form, pieces, with_end)


def check_logits(translator, rng, tensors, form, pieces, with_end, tolerance=1e-4):
    """Compares an import with the formulas."""
    sources = [rng.integers(3, 12, n).tolist() for n in (5, 1, 3)]
    targets = rng.integers(3, 9, (3, 6))
    found, _ = logits_of(translator, sources, targets.tolist(), *pieces)
    lengths = [len(row) + with_end for row in sources]
    source = np.full((3, max(lengths)), 6)
    for i, row in enumerate(sources):
        source[i, : lengths[i]] = [*row, 2][: lengths[i]]
    tensors = {name: array.astype(np.float64) for name, array in tensors.items()}
    expected = numpy_marian.teacher_forced(tensors, form, source, lengths, targets, 1)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["int8", "int16", "float16"])
def test_weights_of_few_bits_are_read(tmp_path, rng, kind):
    form = foreign_others.ctranslate2_form()
    tensors, *pieces = foreign_others.write_ctranslate2(tmp_path, rng, form, kind)
    translator = import_ctranslate2(tmp_path)
    check_logits(translator, rng, tensors, form, pieces, False, tolerance=0.15)
    kernel = ops.convert_to_numpy(
        translator.model.encoder_layers[0].feed_forward.hidden_dense.kernel
    )
    stored = tensors["encoder_l1_ffn_W1"]
    error = np.abs(kernel - stored).max()
    assert 0 < error < {"int8": 0.006, "int16": 0.001, "float16": 0.001}[kind] * 2


@pytest.mark.parametrize(
    "options,positions",
    [
        (dict(paper_frequencies=True), "sinusoidal-halves"),
        (dict(), "sinusoidal-marian"),
        (dict(first_position=3), "learned"),
    ],
)
def test_a_table_of_positions_is_a_formula_or_learned(
    tmp_path, rng, options, positions
):
    form = foreign_others.ctranslate2_form(**{"first_position": 0} | options)
    table = numpy_marian.positions(0, 40, 12, form).astype(np.float32)
    tensors, *pieces = foreign_others.write_ctranslate2(
        tmp_path, rng, form, positions=table
    )
    translator = import_ctranslate2(tmp_path)
    assert translator.model.config.positions == positions
    if positions == "learned":
        assert translator.model.config.max_positions == 40
        assert translator.config.longest_output == 40
    check_logits(translator, rng, tensors, form, pieces, False)


def test_an_alias_is_what_it_stands_for(tmp_path, rng):
    form = foreign_others.ctranslate2_form()
    tensors, *pieces = foreign_others.write_ctranslate2(tmp_path, rng, form)
    tensors["decoder_ff_logit_out_W"] = tensors["decoder_Wemb"].T
    variables = foreign_others.ctranslate2_variables(tensors, form)
    variables = foreign_others.quantised(variables, "int8")
    for end in ("", "_scale"):
        del variables[f"decoder/projection/weight{end}"]
    content = foreign_others.ctranslate2_bytes(
        variables, [("decoder/projection/weight", "decoder/embeddings/weight")]
    )
    (tmp_path / "model.bin").write_bytes(content)
    translator = import_ctranslate2(tmp_path)
    assert translator.model.config.tied_embeddings == "two-way"
    check_logits(translator, rng, tensors, form, pieces, False, tolerance=0.15)


def test_texts_without_a_sentencepiece_model_have_spaces_between_pieces(tmp_path, rng):
    _, source, target = foreign_others.write_ctranslate2(tmp_path, rng)
    translator = import_ctranslate2(tmp_path)
    tokenizers = translator.tokenizers
    ids = tokenizers.source.tokenize(["a c  j", "b Z"])
    ours = ids_of(tokenizers.source)
    assert ours["<unk>"] == 3
    assert ids[0].numpy().tolist() == [ours["▁a"], ours["▁c"], ours["▁j"]]
    assert ids[1].numpy().tolist() == [ours["▁b"], 3]
    long = ids_of(tokenizers.target)["▁long"]
    joined = tokenizers.target.detokenize([[long, 3, long, 2]]).numpy()
    assert joined.tolist() == [b"long <unk> long"]


def test_pieces_of_sentencepiece_need_its_model(tmp_path, rng):
    foreign_others.write_ctranslate2(tmp_path, rng)
    file = tmp_path / "source_vocabulary.json"
    pieces = json.loads(file.read_text())
    pieces[5] = "▁c"
    file.write_text(json.dumps(pieces))
    with pytest.raises(ValueError, match="SentencePiece model"):
        import_ctranslate2(tmp_path)


@pytest.fixture(scope="module")
def names():
    """The transliteration model of Arabic names, theirs and ours."""
    if NAMES is None:
        pytest.skip("the trained model of names is not beside the checkout")
    theirs = pytest.importorskip("ctranslate2").Translator(str(NAMES))
    return theirs, import_ctranslate2(NAMES)


def random_names(rng, count):
    """Sequences of Arabic letters, of 1 to 12."""
    letters = (NAMES / "source_vocabulary.txt").read_text("utf-8").split("\n")[3:-1]
    return [
        [letters[i] for i in rng.integers(0, len(letters), n)]
        for n in rng.integers(1, 13, count)
    ]


@pytest.mark.one_case
@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_names_are_spelled_as_by_ctranslate2(names, rng, count, beam_size):
    theirs, ours = names
    sources = random_names(rng, count)
    # CTranslate2 stops at the fourth output that ends, unless it is patient, and the
    # search here when none that is better can come.
    found = theirs.translate_batch(
        sources, beam_size=beam_size, patience=25, max_decoding_length=100
    )
    expected = [" ".join(result.hypotheses[0]) for result in found]
    ours = with_search(
        ours, beam_size=beam_size, max_output_length=100, max_extra_length=100
    )
    assert ours([" ".join(source) for source in sources]) == expected


def test_log_probabilities_are_those_of_ctranslate2(names, rng):
    theirs, ours = names
    sources = random_names(rng, 20)
    targets = [r.hypotheses[0] for r in theirs.translate_batch(sources, beam_size=1)]
    texts = [[" ".join(row) for row in rows] for rows in (sources, targets)]
    scores = theirs.score_batch(sources, targets)
    for one, expected in zip(ours.score(*texts), scores, strict=True):
        np.testing.assert_allclose(
            one.token_log_probabilities, expected.log_probs, atol=1e-4
        )
