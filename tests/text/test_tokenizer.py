"""Tokenizers: text to ids and back, learned, saved, and those of others."""

import io
import json

import keras_hub
import pytest
import sentencepiece
import tensorflow as tf
import tokenizers as hf

from keras_transformer.config import TokenizerConfig
from keras_transformer.text import Tokenizer, TokenizerPair, learn_tokenizers
from keras_transformer.text.spans import PIECES
from tests.formats.test_saved_model import HUB_CORE, HUB_TEXT, violations

ENGLISH = [
    "A small house stands near the river.",
    "Two young men are walking to the old market.",
    "The red car is in front of the house.",
] * 3
GERMAN = [
    "Ein kleines Haus steht am Fluss.",
    "Zwei junge Männer gehen zum alten Markt.",
    "Das rote Auto steht vor dem Haus.",
] * 3
PAIRS = list(zip(ENGLISH, GERMAN, strict=True))
CONFIG = TokenizerConfig(vocabulary_size=330)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.learn(ENGLISH + GERMAN, CONFIG)


def round_trip(tokenizer, texts):
    decoded = tokenizer.detokenize(tokenizer.tokenize(texts)).numpy()
    return [text.decode("utf-8") for text in decoded]


def ids_of(tokenizer, text):
    return tokenizer.tokenize([text])[0].numpy().tolist()


def test_ids_are_those_of_pieces_after_special_ones_and_spans(tokenizer):
    assert tokenizer.vocabulary_size == 330
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    assert tokenizer.pieces(range(13)) == [*special, *PIECES, "<0x00>"]
    assert tokenizer.spans == list(range(4, 12))
    ids = (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id, tokenizer.unknown_id)
    assert ids == (0, 1, 2, 3)
    ids = tokenizer.tokenize(["Das rote Haus", ""])
    assert isinstance(ids, tf.RaggedTensor) and ids.dtype == tf.int32
    assert ids.row_lengths().numpy().tolist()[1] == 0
    assert min(ids.values.numpy()) > 3
    assert "".join(tokenizer.pieces(ids[0].numpy())) == "▁Das▁rote▁Haus"


@pytest.mark.parametrize(
    "text",
    [
        "Zwei junge Männer.",
        "a 🦜 parrot and 漢字",  # unseen: spelled as bytes
        "a</s>b <pad> <s> <unk> <0x41>",  # control symbols are text in text
        "nul\x00byte",
        "",
    ],
)
def test_text_survives_the_round_trip(tokenizer, text):
    assert round_trip(tokenizer, [text]) == [text]
    assert not set(tokenizer.tokenize([text]).values.numpy()) & {0, 1, 2, 3}


def test_what_the_vocabulary_cannot_spell_is_unknown(tokenizer):
    config = TokenizerConfig(vocabulary_size=60, byte_fallback=False)
    plain = Tokenizer.learn(ENGLISH, config)
    assert ids_of(plain, "car 漢")[-1] == 3
    assert plain.vocabulary_size == 60
    # What is no UTF-8 is the replacement character.
    assert round_trip(tokenizer, [b"caf\xe9", b"\xff\xf0\x9f"]) == ["caf�", "���"]


def test_special_ids_and_all_after_the_end_vanish(tokenizer):
    words, more = ids_of(tokenizer, "Das Haus"), ids_of(tokenizer, "Fluss")
    padding = [0] * (len(more) + 1)
    dense = [[1] + words + [2] + more, [0] + words + padding, [2] + words + [2] + more]
    ragged = tf.ragged.constant([words + [2], more, []], dtype=tf.int64)
    for ids, texts in (
        (tf.constant(dense), [b"Das Haus", b"Das Haus", b""]),
        (ragged, [b"Das Haus", b"Fluss", b""]),
        (tf.zeros([1, 0], tf.int32), [b""]),
    ):
        assert tokenizer.detokenize(ids).numpy().tolist() == texts


def test_a_new_random_seed_does_not_break_a_tokenizer(tokenizer):
    @tf.function
    def compiled(texts):
        return tokenizer.detokenize(tokenizer.tokenize(texts))

    texts = tf.constant(["Das Haus"])
    for _ in range(2):
        assert compiled(texts).numpy().tolist() == [b"Das Haus"]
        assert round_trip(tokenizer, texts) == ["Das Haus"]
        tf.random.set_seed(1)  # TensorFlow drops its cached kernels


def test_learning_is_deterministic_and_samples_a_large_text():
    for algorithm in ("bpe", "unigram"):
        config = CONFIG.replace(vocabulary_size=290, algorithm=algorithm)
        first, second = (Tokenizer.learn(ENGLISH, config) for _ in range(2))
        assert first.pieces(range(290)) == second.pieces(range(290))
    text = (f"{word} {number}" for number in range(3000) for word in ("gap", "cap"))
    config = CONFIG.replace(vocabulary_size=288, learning_sentences=200)
    assert Tokenizer.learn(text, config).vocabulary_size == 288


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("asked", [5000, 100])
def test_a_size_that_the_text_cannot_have_becomes_the_nearest(asked, algorithm):
    def learned(size):
        config = TokenizerConfig(vocabulary_size=size, algorithm=algorithm)
        return Tokenizer.learn(iter(ENGLISH), config).vocabulary_size

    nearest, beyond = learned(asked), 1 if asked > 1000 else -1
    assert learned(nearest) == learned(nearest + beyond) == nearest
    assert learned(nearest - beyond) == nearest - beyond


OTHER_IDS = {
    "SentencePiece's own": {},  # unknown, start, end
    "T5's": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "padding last": {"pad_id": 39, "unk_id": 1, "bos_id": 2, "eos_id": 0},
    "another's names": {"pad_id": 3, "pad_piece": "[PAD]", "eos_piece": "[SEP]"},
}


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("name", OTHER_IDS)
def test_a_model_with_other_special_ids_is_renumbered(name, algorithm):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH),
        model_writer=model,
        vocab_size=40,
        model_type=algorithm,
        minloglevel=2,
        **OTHER_IDS[name],
    )
    original = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokenizer = Tokenizer(model.getvalue())
    special = {f() for f in (original.pad_id, original.bos_id, original.eos_id)}
    special |= {original.unk_id()}
    others = [original.id_to_piece(i) for i in range(len(original)) if i not in special]
    size = tokenizer.vocabulary_size
    assert tokenizer.pieces(range(4, size)) == others
    assert len(set(tokenizer.pieces(range(size)))) == size == len(others) + 4
    texts = [*ENGLISH, "an unseen ü", "", "<pad> [PAD] <s></s> [SEP]"]
    rows = tokenizer.tokenize(texts).to_list()
    unknown = original.unk_id()
    for text, row in zip(texts, rows, strict=True):
        ids = original.encode(text)
        assert [i == 3 for i in row] == [i == unknown for i in ids]
        pieces = [original.id_to_piece(i) for i in ids if i != unknown]
        assert tokenizer.pieces(i for i in row if i != 3) == pieces
        assert not {0, 1, 2} & set(row)
    assert round_trip(tokenizer, ENGLISH) == ENGLISH
    # What it saves has our ids: it is read as it is.
    assert Tokenizer(tokenizer.content).content == tokenizer.content


def test_a_joint_pair_is_one_tokenizer_and_two_are_of_their_own_sides(tmp_path):
    pair, folder = learn_tokenizers(PAIRS, CONFIG), tmp_path / "new" / "tokenizer"
    assert pair.source is pair.target
    assert round_trip(pair.source, ["Männer near"]) == ["Männer near"]
    pair.save(folder)
    # No temporary file is left.
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["joint.model", "tokenizer.json"]
    loaded = TokenizerPair.load(folder)
    assert loaded.source is loaded.target and loaded.same_as(pair)
    assert loaded.config == CONFIG
    config = CONFIG.replace(joint_vocabulary=False, vocabulary_size=310)
    learn_tokenizers(PAIRS, config).save(folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["source.model", "target.model", "tokenizer.json"]
    loaded = TokenizerPair.load(folder)
    assert "▁the" in loaded.source.pieces(range(310))
    assert "▁the" not in loaded.target.pieces(range(310))
    assert "▁Haus" in loaded.target.pieces(range(310))
    assert loaded.config == config
    # It is joint if both sides have the same pieces, whatever the options say.
    joint, config = pair.source, CONFIG.replace(joint_vocabulary=False)
    assert TokenizerPair(joint, Tokenizer(joint.content), config).config == CONFIG
    assert not TokenizerPair(joint, loaded.target, CONFIG).config.joint_vocabulary


def word_pieces(**options):
    vocabulary = keras_hub.tokenizers.compute_word_piece_vocabulary(
        tf.data.Dataset.from_tensor_slices(ENGLISH + GERMAN),
        150,
        reserved_tokens=["[PAD]", "[UNK]", "[START]", "[END]"],
    )
    return keras_hub.tokenizers.WordPieceTokenizer(vocabulary, **options)


def byte_pairs():
    made = hf.Tokenizer(hf.models.BPE())
    made.pre_tokenizer = hf.pre_tokenizers.ByteLevel()
    alphabet = hf.pre_tokenizers.ByteLevel.alphabet()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(ENGLISH + GERMAN, trainer)
    model = json.loads(made.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return keras_hub.tokenizers.BytePairTokenizer(model["vocab"], merges)


HUB = {
    "WordPiece": word_pieces,
    "WordPiece without CJK": lambda: word_pieces(split_on_cjk=False),
    "byte pairs": byte_pairs,
    "bytes": lambda: keras_hub.tokenizers.ByteTokenizer(lowercase=False),
    "characters": lambda: keras_hub.tokenizers.UnicodeCodepointTokenizer(
        vocabulary_size=40_000, lowercase=False
    ),
}
UNSEEN = ["Two young men.", "", "das Haus 漢字 über", "one [PAD] two </s>"]


@pytest.mark.one_case("WordPiece without CJK")
@pytest.mark.parametrize("name", HUB)
def test_a_tokenizer_of_keras_hub_cuts_as_in_its_graph(name, tmp_path):
    layer = HUB[name]()
    tokenizer = TokenizerPair.of(layer).source
    rows = tokenizer.tokenize(UNSEEN)
    assert rows.dtype == tf.int32 and not set(rows.values.numpy()) & {0, 1, 2}
    data = tf.data.Dataset.from_tensors(UNSEEN).map(layer.tokenize)
    theirs = next(iter(data)).to_list()
    unknown = getattr(layer, "oov_token", None)
    unknown = None if unknown is None else layer.token_to_id(unknown)
    expected = [[3 if i == unknown else i + 4 for i in row] for row in theirs]
    assert rows.to_list() == expected
    assert tokenizer.vocabulary_size == layer.vocabulary_size() + 4
    assert tokenizer.pieces([0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]
    if "WordPiece" in name:
        assert round_trip(tokenizer, ["Two young men."]) == ["Two young men."]
        assert tokenizer.pieces([4 + 7]) == [layer.get_vocabulary()[7]]
    else:
        assert round_trip(tokenizer, UNSEEN) == UNSEEN
    # What is saved is the same tokenizer, alone and in a graph.
    pair = TokenizerPair.of(layer)
    learn_tokenizers(PAIRS, CONFIG).save(tmp_path)
    pair.save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["joint.json", "tokenizer.json"]
    loaded = TokenizerPair.load(tmp_path)
    assert loaded.source is loaded.target and loaded.same_as(pair)
    assert loaded.source.tokenize(UNSEEN).to_list() == expected
    module = tf.Module()
    module.tables = list(loaded.source.tables)
    module.there_and_back = tf.function(
        lambda texts: loaded.source.detokenize(loaded.source.tokenize(texts)),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, tmp_path / "saved")
    found = tf.saved_model.load(tmp_path / "saved").there_and_back(UNSEEN)
    assert [text.decode() for text in found.numpy()] == round_trip(tokenizer, UNSEEN)
    assert violations(tmp_path / "saved", HUB_CORE | HUB_TEXT) == []


def test_what_is_given_may_be_any_form_of_a_sentencepiece_model(tokenizer, tmp_path):
    path = tmp_path / "text.model"
    tokenizer.save(path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    hub = keras_hub.tokenizers.SentencePieceTokenizer(tokenizer.content)
    for given in (path, str(path), tokenizer.content, processor, hub, tokenizer):
        assert TokenizerPair.of(given).source.content == tokenizer.content


def broken():
    yield ENGLISH[0]
    raise ValueError("train.en:2: bad")


def of_file(name, content):
    """Reads what a file of the folder holds."""

    def read(folder):
        (folder / name).write_bytes(content)
        return TokenizerPair.of(folder / name)

    return read


NO_TEXT = "no text to learn a vocabulary from"
NO_MODEL = r"text\.model is not a SentencePiece"
NO_HUB = r"joint\.json is not a tokenizer file"
# Error, words, and what is done in a folder.
REFUSED = [
    (ValueError, NO_TEXT, lambda _: Tokenizer.learn([], CONFIG)),
    (ValueError, NO_TEXT, lambda _: Tokenizer.learn(["", ""], CONFIG)),
    (ValueError, NO_TEXT, lambda _: Tokenizer.learn(["x" * 5000], CONFIG)),
    # An error of the text's source comes through.
    (ValueError, r"^train\.en:2: bad$", lambda _: Tokenizer.learn(broken(), CONFIG)),
    (ValueError, NO_MODEL, of_file("text.model", b"")),
    (ValueError, NO_MODEL, of_file("text.model", b"garbage")),
    (FileNotFoundError, r"o\.model", lambda path: TokenizerPair.of(path / "o.model")),
    (TypeError, "a SentencePiece model.* Received: int", lambda _: TokenizerPair.of(5)),
    (
        ValueError, "leave `sequence_length` and `split`",
        lambda _: TokenizerPair.of(word_pieces(split=False)),
    ),
    (
        ValueError, "return ragged ids: leave",
        lambda _: TokenizerPair.of(word_pieces(sequence_length=9)),
    ),
    (ValueError, NO_HUB, of_file("joint.json", b"{not json")),
    (ValueError, NO_HUB, of_file("joint.json", b"{}")),
    (ValueError, NO_HUB, of_file("joint.json", b'{"keras_hub": {}, "assets": {}}')),
]  # fmt: skip


@pytest.mark.parametrize(("error", "words", "call"), REFUSED)
def test_what_is_no_tokenizer_or_no_text_for_one_is_told(error, words, call, tmp_path):
    with pytest.raises(error, match=words):
        call(tmp_path)
