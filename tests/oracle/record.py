"""Records what models compute, to compare two states of the code to the bit.

    python -m tests.oracle.record old.json             # in the old checkout
    python -m tests.oracle.record new.json old.json    # in the new one: what differs

Each backend has a process of its own. Only names of `keras_transformer` itself are
used, so that the files may move. Digests belong to a machine and its versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

# Backend and how a step runs there.
WAYS = (
    ("tensorflow", "eager"),
    ("tensorflow", "graph"),
    ("tensorflow", "xla"),
    ("jax", "xla"),
    ("torch", "eager"),
)
POLICIES = ("float32", "mixed_bfloat16")
KINDS = {
    "paper": {},
    "pre-norm, tied": {"norm_first": True, "tied_embeddings": "three-way"},
    "rotary, shared keys": {"positions": "rotary", "num_key_value_heads": 1},
}


def digest(values):
    """A digest of nested arrays, types and shapes included."""
    import keras
    from keras import ops

    found = hashlib.sha256()
    for leaf in keras.tree.flatten(values):
        array = ops.convert_to_numpy(ops.cast(leaf, "float32"))
        found.update(
            f"{keras.backend.standardize_dtype(leaf.dtype)}{array.shape}".encode()
        )
        found.update(array.tobytes())
    return found.hexdigest()[:16]


def recorded(way, policy):
    """Digests of logits, steps with dropout, searches and samples of each kind."""
    import keras
    import numpy as np

    import keras_transformer as kt

    keras.config.set_dtype_policy(policy)
    rng = np.random.default_rng(7)
    source = np.array([[5, 9, 14, 2, 0], [7, 8, 2, 0, 0], [11, 6, 13, 4, 2]], "int32")
    target = rng.integers(4, 29, (3, 7)).astype("int32")
    target[1, 4:] = 0
    found = {}
    for name, options in KINDS.items():
        keras.utils.set_random_seed(3)
        config = kt.TransformerConfig(
            source_vocabulary_size=29,
            target_vocabulary_size=29,
            num_encoder_layers=2,
            num_decoder_layers=2,
            d_model=12,
            d_ff=20,
            num_heads=2,
            **options,
        )
        model = kt.Transformer(config)
        found[f"{name}: logits"] = digest(model((source, target)))
        model.compile(
            kt.Adam(kt.TransformerSchedule(12, 10)),
            kt.MaskedCrossentropy(0.1),
            metrics=[kt.MaskedAccuracy()],
            run_eagerly=way == "eager",
            jit_compile=way == "xla",
        )
        data = (source, target), target
        losses = [model.train_on_batch(*data)[0] for _ in range(4)]
        found[f"{name}: losses"] = np.array(losses, "float32").tobytes().hex()
        found[f"{name}: weights"] = digest(model.variables)
        decoding = kt.DecodingConfig(beam_size=3, max_output_length=9)
        generator = kt.Generator(model, decoding)
        lengths = (source != 0).sum(axis=1).astype("int32")
        found[f"{name}: search"] = digest(generator.search(source, lengths, n_best=2))
        uniforms = rng.random((3, 9)).astype("float32")
        ones = np.ones(3, "float32")
        drawn = generator.sample(source, lengths, uniforms, ones)
        found[f"{name}: sample"] = digest(drawn)
        found[f"{name}: scores"] = digest(generator.score(source, target))
    return found


def main(path, other=None):
    """Records all ways; with another recording, prints what differs."""
    found = {}
    for backend, way in WAYS:
        for policy in POLICIES:
            environment = os.environ | {"KERAS_BACKEND": backend}
            done = subprocess.run(
                [sys.executable, "-m", "tests.oracle.record", "--way", way, policy],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            for name, value in json.loads(done.stdout.splitlines()[-1]).items():
                found[f"{backend}, {way}, {policy}: {name}"] = value
    Path(path).write_text(json.dumps(found, indent=1), encoding="utf-8")
    if other is None:
        return 0
    expected = json.loads(Path(other).read_text(encoding="utf-8"))
    names = sorted(expected.keys() | found.keys())
    differ = [name for name in names if found.get(name) != expected.get(name)]
    print("\n".join([*differ, f"{len(differ)} of {len(names)} differ"]))
    return 1 if differ else 0


if __name__ == "__main__":
    if sys.argv[1] == "--way":
        print(json.dumps(recorded(*sys.argv[2:])))
    else:
        sys.exit(main(*sys.argv[1:]))
