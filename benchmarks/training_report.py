"""Limits, medians, ratios and tables of what `training.py` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import training_floor
from figures import best_of_rounds, markdown, paired_ratios, quartiles, spread
from training_contenders import BY_DTYPE
from training_workload import SETTINGS, SIZES, Setting
from worker import MACHINE

# The multiple of the best peer's speed to reach, for each type.
TARGETS = {
    "tiny": {"float32": 2.0, "bfloat16": 2.0},
    "small": {"float32": 1.5, "bfloat16": 2.0},
    "base": {"float32": 1.3, "bfloat16": 1.6},
}


# The replies of each contender to its turns, in order; see `worker`.
Group = Mapping[str, Sequence[Mapping]]


def summarise(setting_name: str, groups: Sequence[Group]) -> dict:
    """All figures of a setting, for the results file and the tables.

    Args:
        setting_name: A key of `SETTINGS`.
        groups: Those who took turns with each other, one mapping each.

    Returns:
        The keys "contenders" (`turns_of`), "limit" (tokens a second of each type),
        "ratios" (`best_pair` of each type) and "peaks".
    """
    contenders = turns_of(SETTINGS[setting_name], groups)
    peaks = peaks_of(groups)
    return {
        "contenders": contenders,
        "limit": limits(setting_name, peaks),
        "ratios": {dtype: best_pair(contenders, groups, dtype) for dtype in BY_DTYPE},
        "peaks": peaks,
    }


def turns_of(setting: Setting, groups: Sequence[Group]) -> dict[str, dict]:
    """The figures of each contender alone, over all groups.

    Args:
        setting: What was trained.
        groups: Those who took turns with each other, one mapping each.

    Returns:
        For each contender "seconds" a turn, "tokens_per_second" with its spread,
        "peak_memory" in bytes, "compile_seconds", and "loss" of the last turn in nats a
        token.
    """
    replies = {}
    for group in groups:
        for name, turns in group.items():
            replies.setdefault(name, []).extend(turns)
    replies.pop(MACHINE, None)
    return {
        name: {
            "seconds": [turn["seconds"] for turn in turns],
            "tokens_per_second": quartiles(
                [setting.tokens / turn["seconds"] for turn in turns]
            ),
            "peak_memory": max(turn["peak_memory"] for turn in turns),
            "compile_seconds": turns[-1]["compile_seconds"],
            "loss": turns[-1]["result"]["loss"],
        }
        for name, turns in replies.items()
    }


def peaks_of(groups: Sequence[Group]) -> list[dict[str, float]]:
    """What the machine measured in each round of each group.

    Args:
        groups: Those who took turns with each other, one mapping each.
    """
    return [turn["result"] for group in groups for turn in group.get(MACHINE, ())]


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
    best, setting = best_of_rounds(peaks), SETTINGS[setting_name]
    return {
        dtype: training_floor.limit(
            SIZES[setting.size], setting, best[f"{dtype}_flops"]
        )
        for dtype in BY_DTYPE
    }


def best_pair(
    contenders: Mapping[str, Mapping], groups: Sequence[Group], dtype: str
) -> dict | None:
    """Our fastest way against the fastest peer, of one type.

    Args:
        contenders: From `turns_of`.
        groups: Those who took turns with each other, one mapping each.
        dtype: A key of `BY_DTYPE`.

    Returns:
        The keys "ours" and "peer", their names, and those of `paired_ratios`; `None` if
        one of them is missing.
    """
    names = [name for name in BY_DTYPE[dtype] if name in contenders]
    # The fastest last.
    names.sort(key=lambda name: contenders[name]["tokens_per_second"]["median"])
    ours = [name for name in names if name.startswith("ours-")]
    peers = [name for name in names if name not in ours]
    if not (ours and peers):
        return None
    best, peer = ours[-1], peers[-1]
    together = [group for group in groups if best in group and peer in group]
    if not together:
        return None
    seconds = {
        name: [turn["seconds"] for group in together for turn in group[name]]
        for name in (best, peer)
    }
    return {"ours": best, "peer": peer, **paired_ratios(seconds[peer], seconds[best])}


def tables(settings: Mapping[str, Mapping]) -> str:
    """Markdown: a table of the speeds for each setting, and one of the ratios.

    Args:
        settings: What `summarise` returned, for each setting.

    Returns:
        Markdown; medians, the quartiles in brackets.
    """
    parts = [
        f"{name}\n\n{speed_table(summary, BY_DTYPE)}"
        for name, summary in settings.items()
    ]
    return "\n\n".join([*parts, _ratios(settings)])


def speed_table(summary: Mapping, by_dtype: Mapping[str, Sequence[str]]) -> str:
    """Markdown: speed, share of the limit, compile time and memory of each contender.

    Args:
        summary: From `summarise`.
        by_dtype: Contenders of each type, in order; those not measured are left out.
    """
    rows = []
    for dtype, names in by_dtype.items():
        limit = summary["limit"].get(dtype)
        rows.append([f"limit, {dtype}", limit and f"{limit:.0f}", None, None, None])
        for name in names:
            if name not in summary["contenders"]:
                continue
            found = summary["contenders"][name]
            speed = found["tokens_per_second"]
            share = limit and f"{speed['median'] / limit:.2f}"
            memory = f"{found['peak_memory'] / 1e9:.2f}"
            wait = f"{found['compile_seconds']:.1f}"
            rows.append([name, spread(speed), share, wait, memory])
    heading = ["contender", "tokens/s", "share of the limit", "compile time (s)"]
    heading.append("peak memory (GB)")
    return markdown(heading, rows)


def _ratios(settings):
    rows = []
    for name, summary in settings.items():
        for dtype, ratio in summary["ratios"].items():
            if ratio is None:
                continue
            pair = f"{ratio['ours']} / {ratio['peer']}"
            target = TARGETS.get(name, {}).get(dtype)
            reached = None
            if target:
                reached = "yes" if ratio["median"] >= target else "no"
            rows.append([name, pair, spread(ratio, ".2f"), target, reached])
    heading = ["setting", "ours / best peer", "median", "target", "reached"]
    return markdown(heading, rows)
