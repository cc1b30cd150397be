from . import (
    kernels as kernels,
    layers as layers,
    losses as losses,
    masks as masks,
    optimizers as optimizers,
)
