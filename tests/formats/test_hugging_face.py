"""Hugging Face's folders against the formulas in float64, and against its own model."""

import json

import ml_dtypes
import numpy as np
import pytest
import sentencepiece
from safetensors.numpy import load_file, save_file

from keras_transformer.formats import import_hugging_face
from tests.formats import foreign
from tests.formats.foreign import ids_of, log_softmax, logits_of
from tests.reference import numpy_marian


def change_json(path, **options):
    """Gives options of a JSON file other values; `...` leaves one out."""
    options = json.loads(path.read_text()) | options
    options = {name: value for name, value in options.items() if value is not ...}
    path.write_text(json.dumps(options))


MORE = ("▁more", "▁still")
# What is tied in the file, which options it has, and what is tied in the import.
TYINGS = {
    "one matrix": ("all", {}, "three-way"),
    "two matrices": ("target", {"activation_function": "swish"}, "two-way"),
    "two vocabularies": ("target", {"more": MORE}, "two-way"),
    "three matrices": ("none", {"activation_function": "swish"}, "none"),
    # A head that was never trained, as in OPUS-MT's "tc-big".
    "a head of version 4": ("all", {"transformers_version": "4.18.0"}, "three-way"),
    "a head of version 5": ("all", {"transformers_version": "5.3.0"}, "none"),
    "a head, version unknown": ("all", {"transformers_version": None}, "three-way"),
}


@pytest.mark.parametrize("name", TYINGS)
def test_the_logits_are_those_of_the_formulas(tmp_path, rng, name):
    tied, options, expected_tying = TYINGS[name]
    form = foreign.hugging_face_form(swish="activation_function" in options)
    tensors, pieces = foreign.write_hugging_face(
        tmp_path, rng, form, tied, dropout=0.3, attention_dropout=0.2, **options
    )
    if "head" in name:
        head = rng.normal(scale=0.3, size=(len(pieces), foreign.WIDTH))
        stored = load_file(tmp_path / "model.safetensors")
        stored["lm_head.weight"] = head.astype(np.float32)
        save_file(stored, tmp_path / "model.safetensors")
        if expected_tying == "none":
            tensors["decoder_ff_logit_out_W"] = head.T
        change_json(tmp_path / "config.json", tie_word_embeddings=...)
    translator = import_hugging_face(tmp_path)
    config = translator.model.config
    assert config.tied_embeddings == expected_tying
    rates = config.dropout_rate, config.attention_dropout_rate
    assert (*rates, config.activation_dropout_rate) == (0.3, 0.2, 0.0)
    sources = [rng.integers(2, len(pieces) - 1, n).tolist() for n in (5, 1, 3)]
    targets = rng.integers(2, len(pieces) - 1, (3, 7))
    source_pieces = [*pieces, *options.get("more", ())]
    found, raw = logits_of(translator, sources, targets.tolist(), source_pieces, pieces)
    lengths = [len(row) + 1 for row in sources]
    source = np.full((3, max(lengths)), 5)
    for i, row in enumerate(sources):
        source[i, : lengths[i]] = [*row, 0]
    pad = len(pieces) - 1
    tensors = {name: array.astype(np.float64) for name, array in tensors.items()}
    expected = numpy_marian.teacher_forced(tensors, form, source, lengths, targets, pad)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    ours = ids_of(translator.tokenizers.target)
    # Padding has its share of the probability, the start that equals it has none.
    order = [ours[piece] for piece in pieces]
    np.testing.assert_allclose(
        log_softmax(raw)[..., order], log_softmax(expected), rtol=1e-4, atol=1e-4
    )


def test_weights_of_every_type_and_in_several_files(tmp_path, rng):
    foreign.write_hugging_face(tmp_path, rng)
    weights = tmp_path / "model.safetensors"
    types = "float16", ml_dtypes.bfloat16, "float32", "float64"
    stored = {
        name: array.astype(types[i % 4])
        for i, (name, array) in enumerate(load_file(weights).items())
    }
    save_file({n: a.astype(np.float32) for n, a in stored.items()}, weights)
    expected = import_hugging_face(tmp_path).model.get_weights()
    weights.unlink()
    for i in range(2):
        part = dict([*stored.items()][i::2])
        save_file(part, tmp_path / f"model-0000{i + 1}-of-00002.safetensors")
    # A clone has pointers of Git LFS in place of what was not fetched.
    (tmp_path / "pytorch_model.bin").write_text(foreign.POINTER)
    found = import_hugging_face(tmp_path).model.get_weights()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("renormalizes", [True, False])
def test_padding_gives_up_its_share_where_generate_renormalizes(
    tmp_path, rng, renormalizes
):
    _, pieces = foreign.write_hugging_face(
        tmp_path, rng, renormalize_logits=renormalizes, min_length=1, max_length=9
    )
    translator = import_hugging_face(tmp_path)
    decoding = translator.config
    assert (decoding.min_output_length, decoding.max_output_length) == (1, 8)
    _, raw = logits_of(translator, [[3, 4]], [[5, 6]], pieces, pieces)
    share = np.exp(log_softmax(raw))[..., ids_of(translator.tokenizers.target)["<pad>"]]
    assert (share == 0).all() if renormalizes else (share > 0).all()


# Options of the model; each has a bias of the logits.
MODELS = {
    "swish, tied": dict(activation_function="swish"),
    "relu, scaled": dict(activation_function="relu", scale_embedding=True),
    "gelu, untied, deeper encoder": dict(
        activation_function="gelu", encoder_layers=3, tie_word_embeddings=False,
        share_encoder_decoder_embeddings=False, scale_embedding=True,
    ),
    "deeper decoder": dict(activation_function="swish", decoder_layers=3),
    "two matrices": dict(
        activation_function="swish", share_encoder_decoder_embeddings=False
    ),
    "two vocabularies": dict(
        scale_embedding=True, share_encoder_decoder_embeddings=False
    ),
    "a head that differs": dict(scale_embedding=True),
    "a head that differs, nothing told": dict(),
    "a head of version 4": dict(),
    "float16": dict(scale_embedding=True),
    "bfloat16": dict(),
    "several files": dict(scale_embedding=True),
}  # fmt: skip
# Of the search, beside those that all of them have.
GENERATION = {
    "relu, scaled": dict(renormalize_logits=True),
    "deeper decoder": dict(
        renormalize_logits=False, min_length=5, max_new_tokens=9,
        decoder_start_token_id=52, eos_token_id=[5],
    ),
}  # fmt: skip


def model_of_transformers(folder, name):
    """What Transformers makes of a folder with random weights, and its tokenizer.

    Also the pieces of the source and of the target.
    """
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    more = MORE if name == "two vocabularies" else ()
    _, pieces = foreign.write_hugging_face(folder, rng, more=more)
    (folder / "model.safetensors").unlink()
    pad = len(pieces) - 1
    options = dict(
        vocab_size=len(pieces) + len(more),
        decoder_vocab_size=len(pieces),
        d_model=16,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=None,
        max_position_embeddings=64,
    )
    torch.manual_seed(7)
    config = transformers.MarianConfig(**options | MODELS[name])
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.requires_grad and weight.ndim > 1:
                # So that texts differ and do not repeat one piece.
                weight.mul_(12.0 if "embed" in path or "shared" in path else 40.0)
            elif weight.requires_grad:
                weight.add_(torch.randn(weight.shape) * 0.2)
        model.final_logits_bias.copy_(torch.randn(1, len(pieces)))
        model.final_logits_bias[0, 0] += 1.0
        model.final_logits_bias[0, pad - 1] = -50.0  # A language is never produced.
    search = dict(
        num_beams=4,
        length_penalty=0.8,
        max_length=24,
        bad_words_ids=[[pad]],
        pad_token_id=pad,
        eos_token_id=0,
        decoder_start_token_id=pad,
        early_stopping="never",
    )
    search |= GENERATION.get(name, {})
    model.generation_config = transformers.GenerationConfig(**search)
    if name in ("float16", "bfloat16"):
        model.to(getattr(torch, name))
    size = "9KB" if name == "several files" else "1GB"
    model.save_pretrained(folder, max_shard_size=size)
    assert (folder / "model.safetensors").exists() == (size == "1GB")
    if "head" in name:
        stored = load_file(folder / "model.safetensors")
        assert "lm_head.weight" not in stored
        stored["lm_head.weight"] = rng.normal(size=(pad + 1, 16)).astype(np.float32)
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
    if name == "a head of version 4":  # That of version 5 is not what wrote it.
        change_json(folder / "config.json", transformers_version="4.18.0.dev0")
    else:
        if "nothing told" in name:
            change_json(folder / "config.json", tie_word_embeddings=...)
        model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    return torch, model.eval(), tokenizer, ([*pieces, *more], pieces)


@pytest.mark.one_case("relu, scaled")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_transformers_computes_and_writes_the_same(tmp_path, rng, name):
    torch, model, tokenizer, pieces = model_of_transformers(tmp_path, name)
    translator = import_hugging_face(tmp_path)
    pad = len(pieces[1]) - 1
    sources = [rng.integers(2, pad, n).tolist() for n in (6, 1, 4)]
    targets = rng.integers(2, pad, (3, 7))
    found, _ = logits_of(translator, sources, targets.tolist(), *pieces)
    width = max(map(len, sources)) + 1
    ids = torch.tensor([[*s, 0, *[pad] * (width - 1 - len(s))] for s in sources])
    start = np.full((3, 1), model.generation_config.decoder_start_token_id)
    shifted = torch.tensor(np.concatenate([start, targets[:, :-1]], 1))
    with torch.no_grad():
        expected = model(
            input_ids=ids, attention_mask=(ids != pad).long(), decoder_input_ids=shifted
        ).logits.numpy()
    if GENERATION.get(name, {}).get("renormalize_logits"):
        expected[..., pad] = -1000.0  # No share: what the search there leaves of it.
    print(f"{name}: logits differ by at most {np.abs(found - expected).max():.1e}")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    words = [word for text in foreign.TEXTS[:4] for word in text.split()]
    texts = [
        " ".join(words[i] for i in rng.integers(0, len(words), n))
        for n in rng.integers(1, 9, 200)
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    outputs = model.generate(**batch)
    # Without the start, which may be a language.
    expected = tokenizer.batch_decode(outputs[:, 1:], skip_special_tokens=True)
    # A text is one sentence there; the unknown piece is left out.
    found = [row[0].text.replace(" ⁇ ", "") for row in translator.nbest(texts)]
    assert len(set(expected)) > 10
    different = [i for i in range(200) if found[i].strip() != expected[i].strip()]
    assert not different


def test_the_ids_of_generate_count_before_those_of_the_model(tmp_path, rng):
    _, pieces = foreign.write_hugging_face(tmp_path, rng)
    file = tmp_path / "generation_config.json"
    ends = '"eos_token_id": {}, "num_beams": 2'
    file.write_text(f'{{"decoder_start_token_id": 7, {ends.format([5])}}}')
    translator = import_hugging_face(tmp_path)
    # Start and end of an output, and the end of a source, which the tokenizer writes.
    tokenizers = translator.tokenizers
    assert tokenizers.target.pieces([1, 2]) == [pieces[7], pieces[5]]
    assert tokenizers.source.pieces([2]) == [pieces[0]] == ["</s>"]
    sides = translator.model.source_embedding, translator.model.target_embedding
    vectors = [np.array(side.token_embedding.embeddings) for side in sides]
    rows = [ids_of(tokenizers.source)[pieces[i]] for i in (7, 5)]
    np.testing.assert_array_equal(vectors[1][1:3], vectors[0][rows])
    for found in ([0, 5], [], None, len(pieces), True):
        file.write_text(f"{{{ends.format(json.dumps(found))}}}")
        if found is None:  # The file says nothing of it.
            target = import_hugging_face(tmp_path).tokenizers.target
            assert target.pieces([2]) == ["</s>"]
            continue
        with pytest.raises(ValueError, match="n_config.json: `eos_token_id` must be"):
            import_hugging_face(tmp_path)


def test_texts_are_cut_as_by_the_vocabulary_and_the_sentencepiece_models(tmp_path, rng):
    _, pieces = foreign.write_hugging_face(tmp_path, rng)
    translator = import_hugging_face(tmp_path)
    models = foreign.opus_models()
    for side, model in models.items():
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        tokenizer = getattr(translator.tokenizers, side)
        for text in [*foreign.TEXTS, "unknown: žluťoučký", "", "  two  spaces "]:
            expected = [
                piece if piece in pieces else "<unk>"
                for piece in processor.encode(text, out_type=str)
            ]
            found = tokenizer.pieces(tokenizer.tokenize([text])[0].numpy())
            # What the vocabulary lacks has an id of its own, with the unknown's row;
            # what the model cannot cut is looked up in the vocabulary, as theirs is.
            assert len(found) == len(expected)
            assert [p if p in pieces else "<unk>" for p in found] == expected


def test_a_target_language_is_one_id_at_the_start(tmp_path, rng):
    foreign.write_hugging_face(tmp_path, rng)
    tokenizer = import_hugging_face(tmp_path).tokenizers.source
    plain = tokenizer.tokenize(["the old man"])[0].numpy().tolist()
    texts = [">>deu<< the old man", ">>xyz<< the old man", "the old man", ">>deu<<"]
    rows = [row.numpy().tolist() for row in tokenizer.tokenize(texts)]
    language = ids_of(tokenizer)[">>deu<<"]
    assert rows == [[language, *plain], [3, *plain], plain, [language]]
    # In the midst of a text, and not ended, it is text.
    for text in ["the >>deu<< man", ">>deu the old man"]:
        assert language not in tokenizer.tokenize([text])[0].numpy()
