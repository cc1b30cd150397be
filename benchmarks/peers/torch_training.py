"""PyTorch: `nn.Transformer`, eager and compiled, and what its peers have in common."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.nn import functional
from training_workload import (
    DROPOUT_RATE,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    Setting,
    batches,
)
from workload import PAD_ID, Size


class TorchPeer(ABC):
    """One step for each batch is a turn; see `worker.Contender`.

    `variant` is "float32" or "bfloat16" (autocast, weights in float32), with "-compile"
    for `torch.compile`.
    """

    versions = {"torch": torch.__version__}

    def __init__(self, size: Size, variant: str, threads: int, folder: str):
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        dtype, _, compiler = variant.partition("-")
        self._dtype = getattr(torch, dtype)
        self._compiled = compiler == "compile"
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        if self._compiled and self._device == "cpu":
            check_compiler()
        self._size = size
        self._model, self._optimizer, self._batches = None, None, []
        self._loss = (
            torch.compile(self._mean_loss) if self._compiled else self._mean_loss
        )

    @abstractmethod
    def make_model(self, size: Size, longest: int) -> nn.Module:
        """Returns a model of source and target ids that gives logits [B, T, V]."""

    def prepare(self, setting: Setting):
        """Makes the model and its optimizer, and the batches."""
        model = self.make_model(self._size, setting.longest_padded).to(self._device)
        self._model = model.train()
        self._optimizer = torch.optim.Adam(
            model.parameters(), LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        self._batches = [
            tuple(
                torch.from_numpy(ids).long().to(self._device)
                for ids in (source, target_in, target_out)
            )
            for (source, target_in), target_out in batches(setting)
        ]

    def run(self):
        """Trains on every batch once: the mean loss of a batch."""
        losses = [self._step(*batch) for batch in self._batches]
        return float(torch.stack(losses).mean())

    def result(self, output) -> dict[str, float]:
        """The mean loss of the turn, in nats a token."""
        return {"loss": output}

    def _step(self, source, target_in, target_out):
        with torch.autocast(
            self._device, torch.bfloat16, enabled=self._dtype == torch.bfloat16
        ):
            loss = self._loss(source, target_in, target_out)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def _mean_loss(self, source, target_in, target_out):
        logits = self._model(source, target_in)
        return functional.cross_entropy(
            logits.flatten(0, 1),
            target_out.flatten(),
            ignore_index=PAD_ID,
            label_smoothing=LABEL_SMOOTHING,
        )


class Peer(TorchPeer):
    """Trains `nn.Transformer`; see `TorchPeer`."""

    def make_model(self, size: Size, longest: int) -> nn.Module:
        """Returns `nn.Transformer` between embeddings and output."""
        return Translation(size, longest)


class Translation(nn.Module):
    """`nn.Transformer` with scaled embeddings, sinusoids and a tied output matrix.

    Args:
        size: The Transformer's sizes.
        longest: Most tokens of a sentence.
    """

    def __init__(self, size: Size, longest: int):
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary_size, size.d_model)
        nn.init.normal_(self.embedding.weight, std=size.d_model**-0.5)
        self.scale = size.d_model**0.5
        self.register_buffer("positions", sinusoids(longest, size.d_model))
        self.dropout = nn.Dropout(DROPOUT_RATE)
        self.transformer = nn.Transformer(
            size.d_model,
            size.num_heads,
            size.num_layers,
            size.num_layers,
            size.d_ff,
            DROPOUT_RATE,
            batch_first=True,
        )
        mask = nn.Transformer.generate_square_subsequent_mask(longest)
        self.register_buffer("causal_mask", mask)

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Gives logits [B, T, V] for ids [B, S] and [B, T]."""
        length = target_in.shape[1]
        padding = torch.zeros(source.shape, device=source.device).masked_fill(
            source == PAD_ID, float("-inf")
        )
        states = self.transformer(
            self._embed(source),
            self._embed(target_in),
            tgt_mask=self.causal_mask[:length, :length],
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return functional.linear(states, self.embedding.weight)

    def _embed(self, ids):
        positions = self.positions[: ids.shape[1]]
        return self.dropout(self.embedding(ids) * self.scale + positions)


def check_compiler():
    """Checks that `torch.compile` can compile for the processor.

    Raises:
        OSError: If there is no C++ compiler.
    """
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    if not any(name and shutil.which(name) for name in names):
        raise OSError("torch.compile needs a C++ compiler, and none was found.")


def sinusoids(length: int, d_model: int) -> torch.Tensor:
    """Returns the paper's positions (L, D), sines first."""
    frequencies = 10000.0 ** -(torch.arange(d_model // 2) / (d_model // 2))
    angles = torch.arange(length)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1)
