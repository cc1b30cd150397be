"""Medians, ratios and tables of the seconds that `decoding.py` measured.

`measured` is, for each setting, the seconds a call of each contender in each round, in
order; the machine's peaks stand beside them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import floor
from contenders import KERASHUB
from figures import best_of_rounds, markdown, paired_ratios, quartiles, spread
from workload import SETTINGS, SIZES

# Ours, a peer, and the multiple of the peer's speed to reach.
TARGETS = {
    "base-32-beam4": (
        ("ours-float32", "ctranslate2-float32", 1.3),
        ("ours-bfloat16", "ctranslate2-int8", 1.0),
    ),
    "base-32-greedy": (
        ("ours-float32", "ctranslate2-float32", 2.0),
        ("ours-bfloat16", "ctranslate2-int8", 0.9),
    ),
    "base-1-greedy": (
        ("ours-litert-float32", "ctranslate2-float32", 2.0),
        ("ours-litert-int8", "ctranslate2-int8", 2.0),
        ("ours-float32", "ctranslate2-float32", 1.0),
        ("ours-bfloat16", "ctranslate2-int8", 0.8),
    ),
    "base-1-beam4": (
        ("ours-litert-float32", "ctranslate2-float32", 2.0),
        ("ours-litert-int8", "ctranslate2-int8", 2.0),
        ("ours-float32", "ctranslate2-float32", 1.3),
        ("ours-bfloat16", "ctranslate2-int8", 0.8),
    ),
    "small-32-beam4": (
        ("ours-float32", "ctranslate2-float32", 1.0),
        ("ours-litert-float32", "ctranslate2-float32", 1.0),
        ("ours-litert-int8", "ctranslate2-int8", 1.0),
    ),
    "small-1-beam4": (
        ("ours-litert-float32", "ctranslate2-float32", 2.0),
        ("ours-litert-int8", "ctranslate2-int8", 2.0),
    ),
    "small-1-greedy": (
        ("ours-litert-float32", "ctranslate2-float32", 2.0),
        ("ours-litert-int8", "ctranslate2-int8", 2.0),
        ("ours-float32", "ctranslate2-float32", 0.5),
    ),
}
# Ratios that are quoted with or without a target.
PAIRS = (
    ("ours-float32", "ctranslate2-float32"),
    ("ours-bfloat16", "ctranslate2-int8"),
    ("ours-litert-float32", "ctranslate2-float32"),
    ("ours-litert-int8", "ctranslate2-int8"),
    ("ours-onnx-float32", "ctranslate2-float32"),
    ("ours-onnx-int8", "ctranslate2-int8"),
    ("ours-float32", "marian-float32"),
    ("ours-bfloat16", "marian-bfloat16"),
    ("ours-float32", "kerashub-best"),
)
_SPEEDS = {
    "CTranslate2 fp32": "ctranslate2-float32",
    "CTranslate2 int8": "ctranslate2-int8",
    "HF Marian fp32": "marian-float32",
    "HF Marian bf16": "marian-bfloat16",
    "KerasHub best": "kerashub-best",
    "ours fp32": "ours-float32",
    "ours bf16": "ours-bfloat16",
    "ours LiteRT fp32": "ours-litert-float32",
    "ours LiteRT int8": "ours-litert-int8",
    "ours ONNX fp32": "ours-onnx-float32",
    "ours ONNX int8": "ours-onnx-int8",
}


def speeds(setting_name: str, seconds: Mapping[str, list]) -> dict[str, list[float]]:
    """Tokens a second of each contender in each round.

    Args:
        setting_name: A key of `SETTINGS`.
        seconds: Seconds a call in each round, for each contender.

    Returns:
        Output tokens a second, and "kerashub-best": KerasHub's best median.
    """
    tokens = SETTINGS[setting_name].tokens
    result = {name: [tokens / s for s in each] for name, each in seconds.items()}
    ways = [result[name] for name in KERASHUB if name in result]
    if ways:
        result["kerashub-best"] = max(ways, key=statistics.median)
    return result


def limits(setting_name: str, peaks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Upper bounds in tokens a second, from the best peak of all rounds.

    Args:
        setting_name: A key of `SETTINGS`.
        peaks: What `peers/machine.py` measured in each round.

    Returns:
        The keys "float32" and "bfloat16"; nothing without `peaks`.
    """
    if not peaks:
        return {}
    best = best_of_rounds(peaks)
    setting = SETTINGS[setting_name]
    return {
        dtype: floor.limit(
            SIZES[setting.size],
            setting,
            item_bytes,
            best[f"{dtype}_flops"],
            best[f"{dtype}_bandwidth"],
        )
        for dtype, item_bytes in (("float32", 4), ("bfloat16", 2))
    }


def ratios(by_contender: Mapping[str, list]) -> dict[str, dict[str, float]]:
    """Our speed over a peer's, for `PAIRS`.

    Args:
        by_contender: Tokens a second in each round, as from `speeds`.

    Returns:
        `paired_ratios` for each "ours / peer".
    """
    return {
        f"{ours} / {peer}": paired_ratios(by_contender[ours], by_contender[peer])
        for ours, peer in PAIRS
        if ours in by_contender and peer in by_contender
    }


def summarise(setting_name: str, seconds: Mapping[str, list], peaks: Sequence) -> dict:
    """All figures of a setting, for the results file and the tables.

    Args:
        setting_name: A key of `SETTINGS`.
        seconds: Seconds a call in each round, for each contender.
        peaks: What `peers/machine.py` measured in each round.

    Returns:
        The keys "seconds", "tokens_per_second", "limit", "ratios" and "peaks".
    """
    by_contender = speeds(setting_name, seconds)
    return {
        "seconds": dict(seconds),
        "tokens_per_second": {
            name: quartiles(each) for name, each in by_contender.items()
        },
        "limit": limits(setting_name, peaks),
        "ratios": ratios(by_contender),
        "peaks": list(peaks),
    }


def tables(settings: Mapping[str, Mapping]) -> str:
    """Two Markdown tables: tokens a second, and ratios with their targets.

    Args:
        settings: What `summarise` returned, for each setting.

    Returns:
        Markdown; medians, the quartiles in brackets.
    """
    return f"{_speed_table(settings)}\n\n{_ratio_table(settings)}"


def _speed_table(settings):
    heading = ["tokens/s", "limit fp32 / bf16", *_SPEEDS]
    rows = []
    for name, summary in settings.items():
        limit = " / ".join(f"{value:.0f}" for value in summary["limit"].values())
        cells = [
            spread(summary["tokens_per_second"].get(contender))
            for contender in _SPEEDS.values()
        ]
        rows.append([name, limit or "-", *cells])
    return markdown(heading, rows)


def _ratio_table(settings):
    rows = []
    for name, summary in settings.items():
        targets = {f"{a} / {b}": target for a, b, target in TARGETS.get(name, ())}
        for pair, ratio in summary["ratios"].items():
            target = targets.get(pair)
            reached = "-"
            if target is not None:
                reached = "yes" if ratio["median"] >= target else "no"
            rows.append([name, pair, spread(ratio, ".2f"), target, reached])
        for ours, limit in _shares(summary).items():
            rows.append([name, ours, f"{limit:.2f}", None, "-"])
    return markdown(["setting", "ratio", "median", "target", "reached"], rows)


def _shares(summary):
    """Speed of ours over the limit of its type."""
    return {
        f"ours-{dtype} / limit": summary["tokens_per_second"][f"ours-{dtype}"]["median"]
        / limit
        for dtype, limit in summary["limit"].items()
        if f"ours-{dtype}" in summary["tokens_per_second"]
    }
