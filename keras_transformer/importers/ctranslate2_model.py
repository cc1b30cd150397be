"""The variables of a CTranslate2 Transformer by our names."""

from __future__ import annotations

import math

import numpy as np

_ACTIVATIONS = {0: "relu", 2: "silu", 3: "gelu", 5: "tanh", 6: "sigmoid"}
# Of attention and search, not of what a model computes.
_IDLE = ("alignment_layer", "alignment_heads", "embeddings_merge",
         "alibi_use_positive_positions", "scale_alibi")  # fmt: skip
# Rows of a table that CTranslate2 computes and does not store (tokens).
_MOST_POSITIONS = 1024


class Reader:
    """Takes a model's variables and gives them our names.

    Args:
        tensors: The variables, as weights.
        arrays: The same, as they are: some are numbers of the specification.
    """

    def __init__(self, tensors, arrays):
        self.tensors, self.arrays = tensors, arrays
        self.use_bias = "encoder/layer_0/self_attention/linear_0/bias" in tensors
        self.scaled = True

    def attribute(self, *names, default=None):
        """Returns the number of the specification that has one of some names."""
        found = [name for name in names if name in self.arrays]
        self.tensors.pass_over(found)
        if not found:
            return default
        array = self.arrays[found[0]]
        if array.size != 1:
            raise ValueError(f"{self.tensors.origin}: {found[0]} must be one number")
        return array.reshape(-1)[0].item()

    def one_of(self, name, accepted, default):
        """Returns a number of both sides, which must be one of some, alike."""
        values = [
            self.attribute(f"{side}/{name}", name, default=default)
            for side in ("encoder", "decoder")
        ]
        if values[0] != values[1] or (accepted and values[0] not in accepted):
            raise ValueError(
                f"{self.tensors.origin}: `{name}` must be the same of encoder and "
                f"decoder{f', one of {list(accepted)}' if accepted else ''}. Received: "
                f"{values[0]} and {values[1]}"
            )
        return values[0]

    def model_options(self, old_heads):
        """Returns options of a `TransformerConfig`."""
        activation = self.one_of("activation", _ACTIVATIONS, 0)
        for name in ("alibi", "with_relative_position", "sliding_window"):
            self.one_of(name, (0,), 0)
        self.tensors.pass_over(
            [f"{side}/{name}".lstrip("/") for name in _IDLE
             for side in ("", "encoder", "decoder")]
        )  # fmt: skip
        self._set_scaled()
        counts = {}
        for side in ("encoder", "decoder"):
            prefix, count = f"{side}/layer_", 0
            # Every layer takes tensors from the file, so that this ends.
            while f"{prefix}{count}/ffn/linear_0/weight" in self.tensors:
                count += 1
            counts[f"num_{side}_layers"] = count
        if not all(counts.values()):
            raise ValueError(f"{self.tensors.origin} must have layers on both sides")
        hidden = self.arrays["encoder/layer_0/ffn/linear_0/weight"].shape
        return counts | {
            "num_heads": self.one_of("num_heads", (), old_heads or 8),
            "d_ff": hidden[0] if hidden else 0,
            "norm_first": bool(self.one_of("pre_norm", (0, 1), 1)),
            "activation": _ACTIVATIONS[activation],
            "use_bias": self.use_bias,
            "normalize_embeddings": "encoder/layernorm_embedding/gamma" in self.tensors,
        }

    def _set_scaled(self):
        """Reads whether embeddings are multiplied by the root of their width."""
        width = self.arrays.get("decoder/embeddings/weight", np.zeros((1, 1))).shape[-1]
        scales = []
        for side, name in (("encoder", "embeddings_0"), ("decoder", "embeddings")):
            scale = self.attribute(
                f"{side}/scale_embeddings",
                f"{side}/{name}/multiply_by_sqrt_depth",
                f"{side}/embeddings/multiply_by_sqrt_depth",
                default=1,
            )
            # A flag is a whole number, a factor is a float.
            if isinstance(scale, float) and math.isclose(
                scale, math.sqrt(width), rel_tol=1e-6
            ):
                scale = 1
            scales.append(scale)
        if scales not in ([0, 0], [1, 1]):
            raise ValueError(
                f"{self.tensors.origin}: `scale_embeddings` must be a flag, the same "
                f"of encoder and decoder. Received: {scales[0]} and {scales[1]}"
            )
        self.scaled = bool(scales[0])

    def matrices(self):
        """Returns the three matrices and the bias, as a `Description` has them."""
        take = self.tensors.take
        name = "encoder/embeddings_0/weight"
        if name not in self.tensors:
            name = "encoder/embeddings/weight"
        target = take("decoder/embeddings/weight", None, None)
        source = take(name, None, target.shape[1])
        output = take("decoder/projection/weight", *target.shape)
        bias = None
        if "decoder/projection/bias" in self.tensors:
            bias = take("decoder/projection/bias", len(target))
        return {
            "source_embeddings": source, "target_embeddings": target,
            "output_rows": output, "output_bias": bias,
        }  # fmt: skip

    def layers(self, model):
        """Returns the weights of all layers by their paths in a `Transformer`."""
        width, hidden, weights = model["d_model"], model["d_ff"], {}
        for side, count in (
            ("encoder", model["num_encoder_layers"]),
            ("decoder", model["num_decoder_layers"]),
        ):
            for i in range(count):
                ours, theirs = f"{side}_layer_{i}", f"{side}/layer_{i}"
                self._attention(
                    weights, f"{ours}/self_attention", f"{theirs}/self_attention",
                    (("query", "key", "value"), ("output",)), width,
                )  # fmt: skip
                if side == "decoder":
                    self._attention(
                        weights, f"{ours}/cross_attention", f"{theirs}/attention",
                        (("query",), ("key", "value"), ("output",)), width,
                    )  # fmt: skip
                ours, theirs = f"{ours}/feed_forward", f"{theirs}/ffn"
                self._linear(
                    weights, [f"{ours}/hidden"], f"{theirs}/linear_0", width, hidden
                )
                self._linear(
                    weights, [f"{ours}/output"], f"{theirs}/linear_1", hidden, width
                )
                self._norm(weights, f"{ours}_norm", f"{theirs}/layer_norm", width)
            if model["norm_first"]:
                self._norm(weights, f"{side}_norm", f"{side}/layer_norm", width)
            if model["normalize_embeddings"]:
                ours = {"encoder": "source", "decoder": "target"}[side]
                self._norm(
                    weights, f"{ours}_embedding_norm", f"{side}/layernorm_embedding",
                    width,
                )  # fmt: skip
        return weights

    def _attention(self, weights, ours, theirs, groups, width):
        for i, names in enumerate(groups):
            self._linear(
                weights, [f"{ours}/{name}" for name in names], f"{theirs}/linear_{i}",
                width, width, has_bias=self.use_bias,
            )  # fmt: skip
        self._norm(weights, f"{ours}_norm", f"{theirs}/layer_norm", width)

    def _linear(self, weights, ours, theirs, inputs, outputs, has_bias=True):
        """Takes a matrix (out, in), perhaps several, one above the other."""
        rows = len(ours) * outputs
        kernel = self.tensors.take(f"{theirs}/weight", rows, inputs)
        for i, name in enumerate(ours):
            part = slice(i * outputs, (i + 1) * outputs)
            weights[f"{name}/kernel"] = kernel[part].T
        if has_bias:
            bias = self.tensors.take(f"{theirs}/bias", rows)
            for i, name in enumerate(ours):
                weights[f"{name}/bias"] = bias[i * outputs : (i + 1) * outputs]

    def _norm(self, weights, ours, theirs, width):
        for name in ("gamma", "beta"):
            weights[f"{ours}/{name}"] = self.tensors.take(f"{theirs}/{name}", width)

    def set_positions(self, model, layers):
        """Sets the kind of positions, and the tables where no formula gives them."""
        width = model["d_model"]
        tables = {}
        for side, ours in (("encoder", "source"), ("decoder", "target")):
            name = f"{side}/position_encodings/encodings"
            if name in self.tensors:
                tables[ours] = self.tensors.take(name, None, width)
            else:
                tables[ours] = _computed(width)
        kinds = {_formula_of(table) for table in tables.values()}
        if len(kinds) == 1 and None not in kinds:
            model["positions"] = kinds.pop()
            return
        most = min(map(len, tables.values()))
        model["positions"], model["max_positions"] = "learned", most
        for ours, table in tables.items():
            layers[f"{ours}_embedding/position_embeddings"] = table[:most]

    def flags_of_ends(self, options):
        """Returns what stands at the ends of a source, and what starts a target."""
        old = {
            name: self.attribute(name, default=default)
            for name, default in (
                ("with_source_bos", 0), ("with_source_eos", 0), ("with_target_bos", 1),
            )
        }  # fmt: skip
        if options.values.get("add_source_bos", bool(old["with_source_bos"])):
            raise options.error("add_source_bos", "must be false: no start goes first")
        starts_from_zero = self.attribute(
            "decoder/start_from_zero_embedding", default=0
        )
        return {
            "source_end": bool(
                options.values.get("add_source_eos", bool(old["with_source_eos"]))
            ),
            "from_zero": bool(starts_from_zero),
            "from_end": not old["with_target_bos"],
        }


def _computed(width):
    """Returns the table that CTranslate2 computes: its first position is 1."""
    half = width // 2
    steps = np.arange(half) * -(math.log(10000.0) / max(half - 1, 1))
    angles = np.arange(1, _MOST_POSITIONS + 1)[:, None] * np.exp(steps)
    table = np.zeros((_MOST_POSITIONS, width), np.float32)
    table[:, :half], table[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    return table


def _formula_of(table):
    """Returns the kind of positions whose formula gives a table, or `None`."""
    length, width = table.shape
    if width % 2 or width < 4 or not length:
        return None
    half, places = width // 2, np.arange(length)[:, None]
    angles = places * 10000.0 ** (-2.0 * np.arange(half) / width)
    marian = places * 10000.0 ** (-np.arange(half) / (half - 1.0))
    interleaved = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, width)
    formulas = {
        "sinusoidal": interleaved,
        "sinusoidal-halves": np.concatenate([np.sin(angles), np.cos(angles)], -1),
        "sinusoidal-marian": np.concatenate([np.sin(marian), np.cos(marian)], -1),
    }
    for kind, values in formulas.items():
        # A table of float16 or of float32 sines of far positions is this exact.
        if np.allclose(table, values, rtol=0, atol=1e-3):
            return kind
    return None
