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
BATCH, SOURCE_LENGTH, TARGET_LENGTH = 2, 7, 5
NUM_HEADS, D_MODEL, D_FF = 3, 15, 11
KEY_WIDTH, VALUE_WIDTH = 13, 17
LAYER_OPTIONS = dict(
    d_model=D_MODEL, nhead=NUM_HEADS, dim_feedforward=D_FF, dropout=0.0,
    layer_norm_eps=1e-6, batch_first=True, dtype=torch.float64,
)  # fmt: skip

# True = may attend; the last row of the batch is padded.
SOURCE_MASK = torch.arange(SOURCE_LENGTH) < torch.tensor([[SOURCE_LENGTH], [4]])
TARGET_MASK = torch.arange(TARGET_LENGTH) < torch.tensor([[TARGET_LENGTH], [3]])
CAUSAL_MASK = torch.tril(torch.ones(TARGET_LENGTH, TARGET_LENGTH, dtype=torch.bool))


def randomise(module):
    """Gives every parameter, biases and norms too, a random value of order 1."""
    for name, parameter in sorted(module.named_parameters()):
        scale = 0.3 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
        offset = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        with torch.no_grad():
            parameter.copy_(offset + scale * torch.randn_like(parameter))


def random(*shape):
    """Standard normal float64 numbers."""
    return torch.randn(shape, dtype=torch.float64)


def attention_weights_of(attention):
    """Our names for the weights of a `torch.nn.MultiheadAttention`."""
    if attention.in_proj_weight is not None:
        kernels = attention.in_proj_weight.chunk(3)
    else:
        kernels = (
            attention.q_proj_weight,
            attention.k_proj_weight,
            attention.v_proj_weight,
        )
    kernels += (attention.out_proj.weight,)
    biases = attention.in_proj_bias.chunk(3) + (attention.out_proj.bias,)
    weights = {}
    for name, kernel, bias in zip(
        ("query", "key", "value", "output"), kernels, biases, strict=True
    ):
        weights[f"{name}_kernel"] = kernel.T
        weights[f"{name}_bias"] = bias
    return weights


def layer_weights_of(layer):
    """Our names for the weights of a PyTorch encoder or decoder layer."""
    parts = {"self_attention": attention_weights_of(layer.self_attn)}
    norms = ["self_attention_norm", "feed_forward_norm"]
    if hasattr(layer, "multihead_attn"):
        parts["cross_attention"] = attention_weights_of(layer.multihead_attn)
        norms.insert(1, "cross_attention_norm")
    for number, name in enumerate(norms, start=1):
        norm = getattr(layer, f"norm{number}")
        parts[name] = {"gamma": norm.weight, "beta": norm.bias}
    parts["feed_forward"] = {
        "hidden_kernel": layer.linear1.weight.T,
        "hidden_bias": layer.linear1.bias,
        "output_kernel": layer.linear2.weight.T,
        "output_bias": layer.linear2.bias,
    }
    return {
        f"{part}/{name}": value
        for part, weights in parts.items()
        for name, value in weights.items()
    }


def multi_head_attention_case():
    """Cross-attention with three input widths and padded keys."""
    attention = torch.nn.MultiheadAttention(
        D_MODEL, NUM_HEADS, kdim=KEY_WIDTH, vdim=VALUE_WIDTH, batch_first=True,
        dtype=torch.float64,
    )  # fmt: skip
    randomise(attention)
    query = random(BATCH, TARGET_LENGTH, D_MODEL)
    key = random(BATCH, SOURCE_LENGTH, KEY_WIDTH)
    value = random(BATCH, SOURCE_LENGTH, VALUE_WIDTH)
    outputs, attention_weights = attention(
        query, key, value, key_padding_mask=~SOURCE_MASK, average_attn_weights=False
    )
    inputs = {"query": query, "key": key, "value": value, "mask": SOURCE_MASK}
    results = {"outputs": outputs, "attention_weights": attention_weights}
    return attention_weights_of(attention) | inputs | results


def encoder_layer_case(norm_first):
    """Self-attention with padded keys, then feed-forward."""
    layer = torch.nn.TransformerEncoderLayer(norm_first=norm_first, **LAYER_OPTIONS)
    randomise(layer)
    inputs = random(BATCH, SOURCE_LENGTH, D_MODEL)
    outputs = layer(inputs, src_key_padding_mask=~SOURCE_MASK)
    arrays = {"inputs": inputs, "mask": SOURCE_MASK, "outputs": outputs}
    return layer_weights_of(layer) | arrays


def decoder_layer_case(norm_first):
    """Causal self-attention and cross-attention, both padded."""
    layer = torch.nn.TransformerDecoderLayer(norm_first=norm_first, **LAYER_OPTIONS)
    randomise(layer)
    inputs = random(BATCH, TARGET_LENGTH, D_MODEL)
    encoder_output = random(BATCH, SOURCE_LENGTH, D_MODEL)
    outputs = layer(
        inputs,
        encoder_output,
        tgt_mask=~CAUSAL_MASK,
        tgt_key_padding_mask=~TARGET_MASK,
        memory_key_padding_mask=~SOURCE_MASK,
    )
    arrays = {
        "inputs": inputs,
        "encoder_output": encoder_output,
        "mask": TARGET_MASK,
        "encoder_output_mask": SOURCE_MASK,
        "outputs": outputs,
    }
    return layer_weights_of(layer) | arrays


def main():
    torch.manual_seed(20170612)
    cases = {
        "multi_head_attention": multi_head_attention_case(),
        "encoder_layer_post_norm": encoder_layer_case(norm_first=False),
        "encoder_layer_pre_norm": encoder_layer_case(norm_first=True),
        "decoder_layer_post_norm": decoder_layer_case(norm_first=False),
        "decoder_layer_pre_norm": decoder_layer_case(norm_first=True),
    }
    arrays = {
        f"{case}/{name}": value.detach().numpy()
        for case, values in cases.items()
        for name, value in values.items()
    }
    np.savez_compressed(WITNESS, **arrays)
    print(f"{WITNESS.name}: {len(arrays)} arrays, {WITNESS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
