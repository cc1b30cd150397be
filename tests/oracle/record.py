"""Record what the package computes, and compare two recordings: the judge of a rebuild.

A recording holds the numbers of small models and layers, one for each family and option
(`cases.py`): outputs, the loss and its gradients, five updates of the optimizer, and
what greedy search, beam search and sampling find. It is made on TensorFlow (eager,
graph and XLA), JAX and PyTorch, in float32 and bfloat16, each backend in a process of
its own. No dropout is applied, and each weight gets numbers that follow from its name:
code with other initializers, or weights in other layers, computes from the same ones.

    python tests/oracle/record.py --root OTHER_CHECKOUT --out before.npz
    python tests/oracle/record.py --root . --out after.npz
    python tests/oracle/record.py --compare before.npz after.npz

All of it takes half an hour of one core. While one works, a part suffices, of which
`--compare` is told too:

    PART="--modes eager --types float32 --cases transformer/norm_first|layer/mha"
    python tests/oracle/record.py $PART --out part.npz
    python tests/oracle/record.py $PART --compare before.npz part.npz

`--compare` prints cases by backends and types with the largest absolute and relative
difference; `=` says that all numbers are equal to the bit. It exits with 1 if a
difference is above its tolerance, a weight has no partner, or a case failed. In
bfloat16 a search may choose another of two hypotheses that score nearly alike; that is
told and fails nothing. Where names of the two codes differ, `cases.py` knows it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
if str(HERE.parents[2]) not in sys.path:  # As a script.
    sys.path.insert(0, str(HERE.parents[2]))

from tests.oracle.cases import (  # noqa: E402
    BATCH,
    all_cases,
    call_options,
    canonical,
    data_of,
    make,
    numbers,
)
from tests.oracle.comparing import TYPES, compare, table  # noqa: E402

MODES = {"tensorflow": ("eager", "graph", "xla"), "jax": ("jax",), "torch": ("torch",)}
# They take seconds a case: only those `in_full` make updates, searches and bfloat16.
COMPILERS = ("xla", "jax")
THREADS = "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"


def set_weights(model, salt=""):
    """Gives each weight the numbers of its name; returns the weights by their names."""
    weights = {}
    for weight in model.weights:
        name = canonical(weight.path)
        if "seed" in name:
            continue
        if name in weights:
            raise ValueError(f"Two weights are called {name!r}: {weight.path}")
        weights[name] = weight
        values = numbers(salt + name, *weight.shape)
        if name.endswith("gamma"):
            values = 1 + 0.1 * values
        elif name.endswith("embeddings"):
            # So small that a token does not drown what layers say of the others.
            values *= 0.5 * weight.shape[-1] ** -0.5
        elif len(weight.shape) == 1:
            values *= 0.1
        elif "random" not in name:
            values *= 1.5 * math.prod(weight.shape[:-1]) ** -0.5
        weight.assign(values)
    return weights


def to_numpy(tensor):
    """An array; bfloat16 becomes float32, which holds its numbers exactly."""
    from keras import ops

    if "bfloat16" in str(tensor.dtype):
        tensor = ops.cast(tensor, "float32")
    return np.array(ops.convert_to_numpy(ops.stop_gradient(tensor)))


def made(kt, case, policy):
    """Returns a model with weights by their names, and these weights."""
    import keras

    keras.utils.set_random_seed(1)
    model = make(kt, case, policy)
    if case.family == "Ensemble":
        return model, [set_weights(m, str(i)) for i, m in enumerate(model.members)]
    if case.inputs or not model.weights:
        model(*data_of(case)[0], **call_options(case, model))
    return model, set_weights(model)


def loss_of(kt, case):
    """A function of targets and outputs that gives the scalar to take gradients of."""
    import keras
    from keras import ops

    if case.family == "TextClassifier":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if not case.inputs:
        return kt.MaskedCrossentropy(label_smoothing=0.1)

    def weighted(_, outputs):
        parts = [ops.cast(x, "float32") for x in keras.tree.flatten(outputs)]
        factors = [numbers(f"factors {i}", *x.shape) for i, x in enumerate(parts)]
        return sum(
            ops.sum(ops.multiply(x, f)) for x, f in zip(parts, factors, strict=True)
        )

    return weighted


def differentiated(kt, case, model, mode):
    """Outputs of inference and of training, the loss, and its gradients in a list."""
    import keras

    inputs, targets = data_of(case)
    options, loss = call_options(case, model), loss_of(kt, case)
    arrays = keras.tree.flatten(inputs)
    places = [i for i, array in enumerate(arrays) if array.dtype == np.float32]
    arguments = functools.partial(keras.tree.pack_sequence_as, inputs)
    weights = model.trainable_weights
    if mode == "jax":
        import jax

        fixed = [v.value for v in model.non_trainable_variables]

        def compute(values, floats, training):
            given = list(arrays)
            for place, x in zip(places, floats, strict=True):
                given[place] = x
            outputs, _ = model.stateless_call(
                values, fixed, *arguments(given), **options, training=training
            )
            return loss(targets, outputs), outputs

        given = [v.value for v in weights], [arrays[i] for i in places]
        rule = jax.value_and_grad(compute, argnums=(0, 1), has_aux=True)
        rule = jax.jit(rule, static_argnums=2)
        (value, trained), gradients = rule(*given, True)
        _, outputs = jax.jit(compute, static_argnums=2)(*given, False)
        return outputs, trained, value, keras.tree.flatten(gradients)
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    if targets is not None:
        targets = keras.ops.convert_to_tensor(targets)
    if mode == "torch":
        floats = [tensors[i].requires_grad_() for i in places]
        trained = model(*arguments(tensors), **options, training=True)
        value = loss(targets, trained)
        value.backward()
        gradients = [v.value.grad for v in weights] + [x.grad for x in floats]
        outputs = model(*arguments(tensors), **options, training=False)
        return outputs, trained, value, gradients
    import tensorflow as tf

    def step(*tensors):
        floats = [tensors[i] for i in places]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            trained = model(*arguments(list(tensors)), **options, training=True)
            value = loss(targets, trained)
        gradients = tape.gradient(value, [v.value for v in weights] + floats)
        outputs = model(*arguments(list(tensors)), **options, training=False)
        gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
        return outputs, trained, value, gradients

    return in_mode(step, mode)(*tensors)


def in_mode(function, mode, signature=None):
    """A function of tensors as a mode runs it."""
    if mode not in ("graph", "xla"):
        return function
    import tensorflow as tf

    options = {"jit_compile": mode == "xla", "autograph": False}
    return tf.function(function, input_signature=signature, **options)


def updated(kt, case, model, mode):
    """The losses of five updates with Adam and the paper's schedule."""
    schedule = kt.TransformerSchedule(13, warmup_steps=3, scale=0.1)
    model.compile(
        # With a small epsilon a gradient that is zero but for rounding moves a weight.
        optimizer=kt.Adam(schedule, beta_2=0.98, epsilon=1e-4),
        loss=loss_of(kt, case),
        run_eagerly=mode == "eager",
        jit_compile=mode in ("xla", "jax"),
    )
    losses = []
    for step in range(5):
        inputs, targets = data_of(case, step)
        losses.append(np.ravel(model.train_on_batch(inputs[0], targets))[0])
    return np.array(losses)


def searched(kt, case, model, mode):
    """What greedy and beam search find, by the names of their fields."""
    found = {}
    inputs, _ = data_of(case)
    for size, best in ((1, 1), (3, 2)):
        if case.family == "LanguageModel":
            run, tensors, spec = _language_search(kt, model, size, best), (), None
        else:
            source = inputs[0][0]
            # Longer than the first room of a search, so that its state grows.
            more = 13 if case.in_full else 3
            config = kt.DecodingConfig(
                beam_size=size,
                max_extra_length=more,
                max_output_length=31,
                # Models without training repeat themselves.
                no_repeat_ngram_size=2,
            )
            generator = kt.Generator(model, config, fixed_shapes=mode == "xla")
            run = functools.partial(generator.search, n_best=best)
            tensors = source, np.sum(source != 0, axis=1).astype("int32")
            spec = ((None, None), (None,))
        result = _run_search(run, tensors, spec, mode)
        found |= {f"{size}/{k}": v for k, v in result._asdict().items()}
    if case.family == "LanguageModel" and mode not in ("graph", "xla"):
        prompts = np.array([[5, 9], [7, 0], [0, 0]])
        sampler = kt.LanguageSampler(model, top_k=7)
        drawn = sampler(prompts, length=11, temperature=0.7, seed=3)
        found |= {f"drawn/{k}": v for k, v in drawn._asdict().items()}
    return found


def _language_search(kt, model, size, best):
    from keras_transformer.decoding import Constraints

    def run():
        step = functools.partial(model.decode_step, weights=model.decoding_weights())
        return kt.beam_search(
            step,
            model.start_decoding(BATCH, 11, size),
            max_lengths=np.array([11, 7, 5], "int32"),
            limit=11,
            special_ids=kt.SpecialIds(),
            constraints=Constraints(no_repeat_ngram_size=2),
            beam_size=size,
            n_best=best,
        )

    return run


def _run_search(run, arrays, shapes, mode):
    from keras import ops

    signature = None
    if shapes and mode == "graph":
        import tensorflow as tf

        signature = [tf.TensorSpec(shape, "int32") for shape in shapes]
    if mode == "torch":
        import torch

        with torch.no_grad():
            return run(*map(ops.convert_to_tensor, arrays))
    return in_mode(run, mode, signature)(*map(ops.convert_to_tensor, arrays))


def record_case(kt, case, mode, dtype):
    """Returns the arrays of a case by their names."""
    import keras

    policy = {"float32": "float32", "bfloat16": "mixed_bfloat16"}[dtype]
    found = {}

    def keep(kind, name, tensors):
        tensors = keras.tree.flatten(tensors)
        for i, tensor in enumerate(tensors):
            place = f"/{i}" if len(tensors) > 1 else ""
            found[f"{kind}/{name}{place}"] = to_numpy(tensor)

    model, weights = made(kt, case, policy)
    if case.family == "Ensemble":
        (pair,), _ = data_of(case)
        run = in_mode(lambda *pair: model(pair), mode)
        keep("outputs", "inference", run(*map(keras.ops.convert_to_tensor, pair)))
    else:
        outputs, trained, value, gradients = differentiated(kt, case, model, mode)
        keep("outputs", "inference", outputs)
        keep("outputs", "training", trained)
        keep("outputs", "loss", value)
        names = {id(weight): name for name, weight in weights.items()}
        names = [names[id(weight)] for weight in model.trainable_weights]
        names += [f"input {i}" for i in range(len(gradients) - len(names))]
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is not None:
                keep("gradients", name, gradient)
    if mode in COMPILERS and not case.in_full:
        return found
    if case.family in ("Transformer", "Ensemble", "LanguageModel"):
        # Exports hold models of half precision throughout.
        searching = model if dtype == "float32" else made(kt, case, dtype)[0]
        for name, tensor in searched(kt, case, searching, mode).items():
            keep("search", name, tensor)
    if not case.inputs and case.family != "Ensemble":
        found["updates/losses"] = updated(kt, case, model, mode)
        for name, weight in weights.items():
            keep("updates", name, weight.value)
    return found


def record(root, types, modes, pattern):
    """Records the cases on this process' backend; returns arrays and errors by name."""
    sys.path.insert(0, str(root))
    import keras

    import keras_transformer as kt

    if Path(kt.__file__).resolve().parents[1] != root:
        raise ImportError(f"The package came from {kt.__file__} and not from {root}.")
    found = {}
    chosen = {k: c for k, c in all_cases().items() if re.search(pattern, k)}
    modes = [mode for mode in MODES[keras.backend.backend()] if mode in modes]
    for mode, dtype, name in itertools.product(modes, types, chosen):
        case, key = chosen[name], f"{mode}|{dtype}|{name}"
        if mode in COMPILERS and dtype != "float32" and not case.in_full:
            continue
        try:
            arrays = record_case(kt, case, mode, dtype)
        except Exception as error:
            print(f"FAILED {key}", file=sys.stderr)
            traceback.print_exc()
            arrays = {"error": np.array(f"{type(error).__name__}: {error}")}
        found |= {f"{key}|{part}": array for part, array in arrays.items()}
        keras.backend.clear_session()
    return found


def record_backends(options):
    """Records each backend in a process of its own, and joins what they write."""
    found, parts = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for backend, modes in MODES.items():
            if set(modes).isdisjoint(options.modes):
                continue
            part = Path(folder, f"{backend}.npz")
            arguments = ["--root", options.root, "--out", part, "--backend", backend]
            arguments += ["--cases", options.cases, "--types", *options.types]
            arguments += ["--modes", *options.modes]
            environment = os.environ | {
                "KERAS_BACKEND": backend,
                "PYTHONPATH": str(options.root),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "CUDA_VISIBLE_DEVICES": "",
                "JAX_PLATFORMS": "cpu",
                # Tensors are small, and more threads would only wait for each other.
                **dict.fromkeys(THREADS, "1"),
            }
            command = [sys.executable, str(HERE), *map(str, arguments)]
            parts[part] = subprocess.Popen(command, env=environment)
        for part, process in parts.items():
            process.wait()
            if not part.exists():
                raise RuntimeError(f"{part.stem} wrote no recording.")
            with np.load(part) as arrays:
                found |= dict(arrays)
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every_mode = [mode for modes in MODES.values() for mode in modes]
    parser.add_argument("--root", type=Path, default=Path(), help="checkout to record")
    parser.add_argument("--out", type=Path, help="file to write, .npz")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), type=Path)
    parser.add_argument("--cases", default="", help="regular expression of their names")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    parser.add_argument("--modes", nargs="+", choices=every_mode, default=every_mode)
    parser.add_argument("--backend", choices=MODES, help="record in this process")
    options = parser.parse_args(arguments)
    options.root = options.root.resolve()
    if options.compare is None:
        if options.out is None:
            parser.error("give --out or --compare")
        if options.backend is None:
            found = record_backends(options)
        else:
            found = record(options.root, options.types, options.modes, options.cases)
        np.savez_compressed(options.out, **found)
        errors = sum(key.endswith("|error") for key in found)
        print(f"{options.out}: {len(found)} arrays, {errors} cases failed")
        return int(errors > 0)

    def wanted(key):
        mode, dtype, name, _ = key.split("|")
        chosen = mode in options.modes and dtype in options.types
        return chosen and re.search(options.cases, name) is not None

    recordings = []
    for path in options.compare:
        with np.load(path) as arrays:
            recordings.append(dict(arrays))
    cells, failures, remarks = compare(*recordings, wanted)
    print("largest absolute/relative difference; = is equal to the bit\n")
    print("\n".join(table(cells)))
    for title, lines in (("other hypotheses", remarks), ("FAILED", failures)):
        print(f"{title}: {len(lines)}", *lines, sep="\n  ")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
