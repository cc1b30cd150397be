"""What the options of a Marian model mean here; those that have no form are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_transformer.importers.contents import Options

# Options of other kinds of models, of training, or of how weights began.
_IDLE = """
bert-mask-symbol bert-sep-symbol bert-class-symbol bert-masking-fraction
bert-train-type-embeddings bert-type-vocab-size char-highway char-stride char-conv
char-conv-filters-num char-conv-filters-widths convolution dec-cell-base-depth
dec-cell-high-depth dim-pooler dim-rnn enc-cell enc-cell-depth enc-type
factors-combine factors-dim-emb skip transformer-aan-activation
transformer-aan-depth transformer-aan-nogate transformer-depth-scaling
transformer-dim-aan transformer-dim-aan transformer-dropout
transformer-dropout-attention transformer-dropout-ffn ulr-dim-emb
ulr-trainable-transformation ulr-dropout ulr-keys-vectors ulr-query-vectors
ulr-softmax-temperature version original-type max-length lemma-dependency
guided-alignment dropout-rnn dropout-src dropout-trg label-smoothing
""".split()
# Options that must have these values where a model has them.
_NEEDED = {
    "type": ("transformer",),
    "input-types": ([], ["sequence", "sequence"], ["sequence"]),
    "layer-normalization": (False,),
    "lemma-dim-emb": (0,),
    "output-approx-knn": ([],),
    "right-left": (False,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-ffn-depth": (2,),
    "transformer-no-affine": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-projection": (False,),
    "transformer-pool": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-tied-layers": ([], "", None),
    "transformer-train-position-embeddings": (False,),
    "transformer-train-positions": (False,),
    "transformer-disable-position-embeddings": (False,),
    "ulr": (False,),
}
_ACTIVATIONS = {"relu": "relu", "swish": "silu"}
# Of the file that says how to search: what would change the translations.
_SEARCH_NEEDED = {
    "word-penalty": (0, 0.0),
    "output-sampling": (False, [], ""),
    "force-decode": (False,),
    "no-spm-decode": (False,),
    "no-spm-encode": (False,),
    "right-left": (False,),
}


@dataclasses.dataclass
class Form:
    """How a model's tensors are named, and how large they are.

    Args:
        source_matrix: Name of the source's embeddings.
        target_matrix: Name of the target's.
        is_output_tied: Whether the output matrix is the target's embeddings.
        has_output_bias: Whether logits have a bias.
        sizes: Rows of the source's and of the target's embeddings.
    """

    source_matrix: str
    target_matrix: str
    is_output_tied: bool
    has_output_bias: bool
    sizes: tuple[int | None, int | None]


def model_options(options: Options) -> tuple[dict[str, Any], Form]:
    """Returns options of a `TransformerConfig`, and how the tensors are named.

    Args:
        options: Those that the file of the weights holds.

    Raises:
        ValueError: If one has a value that is not built here, or is not known.
    """
    options.one_of("type", "transformer")
    for name, accepted in _NEEDED.items():
        if name in options.values:
            options.one_of(name, *accepted, default=accepted[0])
    form = _form(options)
    activation = options.one_of(
        "transformer-ffn-activation", *_ACTIVATIONS, default="swish"
    )
    width = options.number("transformer-dim-ffn")
    options.one_of("transformer-decoder-dim-ffn", 0, width, default=0)
    norm_of_embeddings = options.one_of(
        "transformer-postprocess-emb", "", "d", "n", "nd", default="d"
    )
    model = {
        "num_encoder_layers": options.number("enc-depth"),
        "num_decoder_layers": options.number("dec-depth"),
        "d_model": options.number("dim-emb"),
        "num_heads": options.number("transformer-heads"),
        "d_ff": width,
        "activation": _ACTIVATIONS[activation],
        "norm_first": _norm_first(options),
        "use_bias": True,
        "positions": "sinusoidal-marian",
        "normalize_embeddings": "n" in norm_of_embeddings,
        "decoder_self_attention": _self_attention(options),
    }
    options.pass_over((*_IDLE, "transformer-guided-alignment-layer"))
    options.check_none_left()
    return model, form


def _form(options):
    """Returns the names of the embeddings and of the output, by what is tied."""
    tied_all = options.one_of("tied-embeddings-all", False, True, default=False)
    tied_source = options.one_of("tied-embeddings-src", False, True, default=False)
    tied_target = options.one_of("tied-embeddings", False, True, default=False)
    one = tied_all or tied_source
    omitted = options.one_of("output-omit-bias", False, True, default=False)
    sizes = options.values.get("dim-vocabs")
    options.pass_over(["dim-vocabs"])
    are_two = isinstance(sizes, list) and len(sizes) == 2
    if not are_two or not all(isinstance(size, int) for size in sizes):
        raise options.error("dim-vocabs", "must be the sizes of two vocabularies")
    return Form(
        source_matrix="Wemb" if one else "encoder_Wemb",
        target_matrix="Wemb" if one else "decoder_Wemb",
        is_output_tied=tied_all or tied_target,
        has_output_bias=not omitted,
        # 0 is what the vocabulary says.
        sizes=tuple(size or None for size in sizes),
    )


def _norm_first(options):
    """Returns whether norms go before the sub-layers: Marian's two usual orders."""
    order = tuple(
        options.one_of(f"transformer-{name}", *accepted, default=accepted[0])
        for name, accepted in (
            ("preprocess", ("", "n", "d")),
            ("postprocess", ("dan", "da")),
            ("postprocess-top", ("", "n")),
        )
    )
    if order not in (("", "dan", ""), ("n", "da", "n")):
        raise options.error(
            "transformer-postprocess",
            "must be 'dan' alone, or 'da' with `transformer-preprocess` and "
            "`transformer-postprocess-top` 'n'",
        )
    return order[0] == "n"


def _self_attention(options):
    """Returns what the decoder has in the place of self-attention, by our name."""
    kind = options.one_of(
        "transformer-decoder-autoreg", "self-attention", "rnn",
        default="self-attention",
    )  # fmt: skip
    if kind == "rnn":
        options.one_of("dec-cell", "ssru")
        return "ssru"
    options.pass_over(["dec-cell"])
    return "attention"


def search_options(values: Options) -> dict[str, Any]:
    """Returns options of a `DecodingConfig` for those of a `decoder.yml`.

    Args:
        values: The file's options; those of how a program runs mean nothing here.

    Raises:
        ValueError: If one would change the translations and has no form here.
    """
    for name, accepted in _SEARCH_NEEDED.items():
        if name in values.values:
            values.one_of(name, *accepted, default=accepted[0])
    beam_size = 12  # Marian's own default.
    if "beam-size" in values.values:
        beam_size = values.number("beam-size")
    normalize = values.values.get("normalize", 0.0)
    if not isinstance(normalize, (bool, int, float)) or normalize < 0:
        raise values.error("normalize", "must be a number of 0 or more")
    allows_unknown = values.one_of("allow-unk", False, True, default=False)
    return {
        "beam_size": beam_size,
        "length_penalty": float(normalize),
        "length_penalty_form": "power",
        "allow_unknown": bool(allows_unknown),
    }
