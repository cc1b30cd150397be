"""PyTorch in its fastest form that we know: fused attention, for `torch.compile`."""

from __future__ import annotations

import torch
from peers.torch_training import TorchPeer, sinusoids
from torch import nn
from torch.nn import functional
from training_workload import DROPOUT_RATE, Setting
from workload import PAD_ID, Size


class Peer(TorchPeer):
    """Trains a Transformer around `scaled_dot_product_attention`; see `TorchPeer`."""

    def make_model(self, size: Size, longest: int) -> nn.Module:
        """Returns a Transformer of fused attention."""
        return Translation(size, longest)

    def prepare(self, setting: Setting):
        """As `TorchPeer`. Without padding attention gets no mask, the faster way."""
        super().prepare(setting)
        self._model.has_padding = any((s == PAD_ID).any() for s, *_ in self._batches)


class Attention(nn.Module):
    """Multi-head attention with one product for all that is made of one input."""

    def __init__(self, size: Size, is_cross: bool):
        super().__init__()
        width, self.num_heads = size.d_model, size.num_heads
        self.query = nn.Linear(width, width) if is_cross else None
        self.joint = nn.Linear(width, (2 if is_cross else 3) * width)
        self.output = nn.Linear(width, width)

    def forward(self, x, memory=None, mask=None, is_causal=False):
        """Gives [B, T, D] for x [B, T, D], a memory [B, S, D], a mask [B, 1, 1, S]."""
        parts = self.joint(x if memory is None else memory).split(x.shape[-1], -1)
        if memory is not None:
            parts = self.query(x), *parts
        query, key, value = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts
        )
        attended = functional.scaled_dot_product_attention(
            query, key, value, mask, DROPOUT_RATE, is_causal
        )
        return self.output(attended.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A layer of the encoder, or of the decoder: post-norm, as in the paper."""

    def __init__(self, size: Size, is_decoder: bool):
        super().__init__()
        self.attention = Attention(size, is_cross=False)
        self.cross = Attention(size, is_cross=True) if is_decoder else None
        self.inner = nn.Linear(size.d_model, size.d_ff)
        self.outer = nn.Linear(size.d_ff, size.d_model)
        self.norms = nn.ModuleList(nn.LayerNorm(size.d_model) for _ in range(3))
        self.dropout = nn.Dropout(DROPOUT_RATE)

    def forward(self, x, memory=None, mask=None):
        """Gives [B, T, D]; a decoder layer attends to a memory [B, S, D]."""
        if self.cross is None:
            x = self._add(0, x, self.attention(x, mask=mask))
        else:
            x = self._add(0, x, self.attention(x, is_causal=True))
            x = self._add(1, x, self.cross(x, memory, mask))
        inner = self.dropout(functional.relu(self.inner(x)))
        return self._add(2, x, self.outer(inner))

    def _add(self, place, x, change):
        return self.norms[place](x + self.dropout(change))


class Translation(nn.Module):
    """A Transformer with scaled embeddings, sinusoids and a tied output matrix.

    Args:
        size: The Transformer's sizes.
        longest: Most tokens of a sentence.
    """

    def __init__(self, size: Size, longest: int):
        super().__init__()
        self.has_padding = True
        self.embedding = nn.Embedding(size.vocabulary_size, size.d_model)
        nn.init.normal_(self.embedding.weight, std=size.d_model**-0.5)
        self.scale = size.d_model**0.5
        self.register_buffer("positions", sinusoids(longest, size.d_model))
        self.dropout = nn.Dropout(DROPOUT_RATE)
        self.encoder, self.decoder = (
            nn.ModuleList(Layer(size, is_decoder) for _ in range(size.num_layers))
            for is_decoder in (False, True)
        )

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Gives logits [B, T, V] for ids [B, S] and [B, T]."""
        mask = (source != PAD_ID)[:, None, None] if self.has_padding else None
        memory, states = self._embed(source), self._embed(target_in)
        for layer in self.encoder:
            memory = layer(memory, mask=mask)
        for layer in self.decoder:
            states = layer(states, memory, mask)
        return functional.linear(states, self.embedding.weight)

    def _embed(self, ids):
        positions = self.positions[: ids.shape[1]]
        return self.dropout(self.embedding(ids) * self.scale + positions)
