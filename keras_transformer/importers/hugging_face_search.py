"""What Hugging Face's `generate` is told to do, as options of the search here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_transformer.importers.contents import Options, read_json

# What would change the outputs in ways that are not here.
_NEEDED = {
    "do_sample": (False, None),
    "repetition_penalty": (1.0, None),
    "diversity_penalty": (0.0, None),
    "num_beam_groups": (1, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "encoder_repetition_penalty": (1.0, None),
    "exponential_decay_length_penalty": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None,),
    "guidance_scale": (1.0, None),
    "force_words_ids": (None,),
    "constraints": (None,),
    "stop_strings": (None,),
    "forced_bos_token_id": (None,),
    "min_new_tokens": (0, None),
    "penalty_alpha": (None,),
}


def generation_options(path: Path, config: Options) -> Options:
    """Returns what `generate` reads: generation_config.json, without it the model's.

    Args:
        path: The model's folder.
        config: The options of config.json.
    """
    file = path / "generation_config.json"
    if file.exists():
        return Options(read_json(file), file)
    return Options(config.values, config.origin)


def banned_rows(options: Options, pad: int) -> tuple[int, ...]:
    """Returns the rows that have no share of the probability.

    `bad_words_ids` makes padding impossible after the softmax, so that its share is
    kept; `renormalize_logits` gives it to the others. So it does with what other
    options ban at a step, which has no form here.

    Args:
        options: What `generate` reads.
        pad: Row of padding.

    Raises:
        ValueError: If anything but padding is banned, or what is banned at a step is
            given to the others.
    """
    words = options.one_of("bad_words_ids", [[pad]], None, [], default=[])
    is_renormalized = options.one_of("renormalize_logits", False, True, None, default=0)
    if not is_renormalized:
        return ()
    for name, idle in (("min_length", 1), ("no_repeat_ngram_size", 0)):
        if (options.values.get(name) or 0) > idle:
            raise options.error(name, f"must be {idle} with `renormalize_logits`")
    return (pad,) if words else ()


def search_options(options: Options) -> dict[str, Any]:
    """Returns options of a `DecodingConfig`: what `generate` does by default.

    Args:
        options: What `generate` reads.

    Raises:
        ValueError: If one would change the outputs and has no form here.
    """
    for name, accepted in _NEEDED.items():
        if name in options.values:
            options.one_of(name, *accepted, default=accepted[0])

    def number(name, default, kind=int):
        # None is what the others do by default.
        given = options.values.get(name) is not None
        return options.number(name, default, kind) if given else default

    found = {
        "beam_size": number("num_beams", 1),
        "length_penalty": float(number("length_penalty", 1.0, float)),
        "length_penalty_form": "power",
        "ends_within_beam": True,
        "no_repeat_ngram_size": number("no_repeat_ngram_size", 0),
        # Their lengths count the start, ours the end.
        "min_output_length": max(1, number("min_length", 0)),
    }
    longest = number("max_new_tokens", number("max_length", 0) - 1)
    if longest >= 0:
        found["max_output_length"] = max(1, longest)
    return found
