"""Records what PyTorch's own Transformer layers compute: `torch_witness.npz`.

The tests read the recorded numbers and so need no PyTorch. Run again, with PyTorch
2.13.0, only to change the cases:

    python -m tests.reference.record_torch_witness

Every array is float64 and lies under CASE/NAME: inputs, masks (True = may attend, the
opposite of PyTorch's), `outputs`, and weights under the names that
`numpy_transformer` gives them. A PyTorch linear map computes x W^T, so each matrix is
transposed; its packed query, key and value matrix is cut in three.
"""

from pathlib import Path

import numpy as np
import torch

WITNESS = Path(__file__).with_name("torch_witness.npz")
SOURCE_LENGTH, TARGET_LENGTH, NUM_HEADS, D_MODEL = 7, 5, 3, 15
LAYER_OPTIONS = dict(
    d_model=D_MODEL, nhead=NUM_HEADS, dim_feedforward=11, dropout=0.0,
    layer_norm_eps=1e-6, batch_first=True, dtype=torch.float64,
)  # fmt: skip
# True = may attend; the last row of the batch is padded.
SOURCE_MASK = torch.arange(SOURCE_LENGTH) < torch.tensor([[SOURCE_LENGTH], [4]])
TARGET_MASK = torch.arange(TARGET_LENGTH) < torch.tensor([[TARGET_LENGTH], [3]])
CAUSAL_MASK = torch.tril(torch.ones(TARGET_LENGTH, TARGET_LENGTH, dtype=torch.bool))


def randomised(module):
    """Gives every parameter, biases and norms too, a random value of order 1."""
    for name, parameter in sorted(module.named_parameters()):
        scale = 0.3 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
        offset = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        with torch.no_grad():
            parameter.copy_(offset + scale * torch.randn_like(parameter))
    return module


def random(length, width):
    """Standard normal float64 numbers of two rows."""
    return torch.randn((2, length, width), dtype=torch.float64)


def attention_weights(attention, prefix=""):
    """Our names for the weights of a `torch.nn.MultiheadAttention`."""
    kernels = attention.in_proj_weight
    if kernels is None:
        kernels = [getattr(attention, f"{name}_proj_weight") for name in "qkv"]
    else:
        kernels = kernels.chunk(3)
    kernels = *kernels, attention.out_proj.weight
    biases = *attention.in_proj_bias.chunk(3), attention.out_proj.bias
    names = [prefix + name for name in ("query", "key", "value", "output")]
    weights = {f"{name}_kernel": x.T for name, x in zip(names, kernels, strict=True)}
    return weights | {f"{name}_bias": x for name, x in zip(names, biases, strict=True)}


def layer_weights(layer):
    """Our names for the weights of a PyTorch encoder or decoder layer."""
    weights = attention_weights(layer.self_attn, "self_attention/")
    norms = ["self_attention_norm", "feed_forward_norm"]
    if hasattr(layer, "multihead_attn"):
        weights |= attention_weights(layer.multihead_attn, "cross_attention/")
        norms.insert(1, "cross_attention_norm")
    for number, name in enumerate(norms, start=1):
        norm = getattr(layer, f"norm{number}")
        weights |= {f"{name}/gamma": norm.weight, f"{name}/beta": norm.bias}
    for name, linear in (("hidden", layer.linear1), ("output", layer.linear2)):
        weights[f"feed_forward/{name}_kernel"] = linear.weight.T
        weights[f"feed_forward/{name}_bias"] = linear.bias
    return weights


def multi_head_attention_case():
    """Cross-attention with three input widths and padded keys."""
    options = {"kdim": 13, "vdim": 17, "batch_first": True, "dtype": torch.float64}
    attention = torch.nn.MultiheadAttention(D_MODEL, NUM_HEADS, **options)
    attention = randomised(attention)
    query = random(TARGET_LENGTH, D_MODEL)
    key, value = random(SOURCE_LENGTH, 13), random(SOURCE_LENGTH, 17)
    outputs, probabilities = attention(
        query, key, value, key_padding_mask=~SOURCE_MASK, average_attn_weights=False
    )
    inputs = {"query": query, "key": key, "value": value, "mask": SOURCE_MASK}
    results = {"outputs": outputs, "attention_weights": probabilities}
    return attention_weights(attention) | inputs | results


def encoder_layer_case(norm_first):
    """Self-attention with padded keys, then feed-forward."""
    layer = torch.nn.TransformerEncoderLayer(norm_first=norm_first, **LAYER_OPTIONS)
    layer, inputs = randomised(layer), random(SOURCE_LENGTH, D_MODEL)
    outputs = layer(inputs, src_key_padding_mask=~SOURCE_MASK)
    arrays = {"inputs": inputs, "mask": SOURCE_MASK, "outputs": outputs}
    return layer_weights(layer) | arrays


def decoder_layer_case(norm_first):
    """Causal self-attention and cross-attention, both padded."""
    layer = torch.nn.TransformerDecoderLayer(norm_first=norm_first, **LAYER_OPTIONS)
    layer, inputs = randomised(layer), random(TARGET_LENGTH, D_MODEL)
    encoded = random(SOURCE_LENGTH, D_MODEL)
    outputs = layer(
        inputs,
        encoded,
        tgt_mask=~CAUSAL_MASK,
        tgt_key_padding_mask=~TARGET_MASK,
        memory_key_padding_mask=~SOURCE_MASK,
    )
    masks = {"mask": TARGET_MASK, "encoder_output_mask": SOURCE_MASK}
    inputs = {"inputs": inputs, "encoder_output": encoded}
    return layer_weights(layer) | inputs | masks | {"outputs": outputs}


def main():
    torch.manual_seed(20170612)
    cases = {"multi_head_attention": multi_head_attention_case()}
    for kind, case in (
        ("encoder", encoder_layer_case),
        ("decoder", decoder_layer_case),
    ):
        for norm_first in (False, True):
            order = "pre" if norm_first else "post"
            cases[f"{kind}_layer_{order}_norm"] = case(norm_first)
    arrays = {
        f"{case}/{name}": value.detach().numpy()
        for case, values in cases.items()
        for name, value in values.items()
    }
    np.savez_compressed(WITNESS, **arrays)
    print(f"{WITNESS.name}: {len(arrays)} arrays, {WITNESS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
