"""Graph classification of molecules, with attention along bonds.

    python examples/classify_graphs.py --task ring --walks 8

The molecules are generated. One task: is a nitrogen bonded to a carbonyl (an amide)?
The other: has the ring six atoms or five? The second is hard, because nodes with
similar neighbours look alike; the return probabilities of random walks of 1 to 8 steps
tell them apart. The baseline is decision trees on the number of atoms of each kind.
"""

import argparse
import keras_transformer.quiet

import keras
import numpy as np
from encoder_parts import ClassToken
from keras import ops
from sklearn.ensemble import RandomForestClassifier

import keras_transformer as kt

CARBON, NITROGEN, OXYGEN = range(3)
VALENCES = np.array([4, 3, 2])
CONFIG = kt.EncoderConfig(
    num_layers=4, d_model=64, d_ff=128, num_heads=4, norm_first=True
)


def molecule(size, rng):
    """Returns elements (N,), bonds (N, N) and the size of the one ring, 5 or 6."""
    rest = np.append(NITROGEN, rng.choice(3, size - 3, p=(0.8, 0.1, 0.1)))
    atoms = np.append([CARBON, OXYGEN], rng.permutation(rest))
    bonds, free = np.zeros((size, size), int), VALENCES[atoms]

    def join(one, other, times=1):
        bonds[[one, other], [other, one]] += times
        free[[one, other]] -= times

    join(0, 1, times=2)
    for atom in range(2, size):
        places = np.flatnonzero(free[:atom])
        if not len(places):
            return molecule(size, rng)
        join(atom, rng.choice(places))
    ring, steps = rng.integers(5, 7), np.eye(size) + bonds
    near, far = (np.linalg.matrix_power(steps, ring - k) for k in (2, 1))
    ends = np.argwhere((near == 0) & (far > 0) & (np.outer(free, free) > 0))
    if not len(ends):
        return molecule(size, rng)
    join(*rng.choice(ends))
    for one, other in np.argwhere(np.triu(bonds)):
        if free[one] and free[other] and rng.random() < 0.3:
            join(one, other)
    return atoms, bonds, ring


def has_amide(atoms, bonds, ring):
    carbonyl = (atoms == CARBON) & (bonds[:, atoms == OXYGEN] == 2).any(axis=1)
    return bonds[carbonyl][:, atoms == NITROGEN].any()


def make_data(count, question, walks, seed):
    """Returns features (B, S, F) and adjacency (B, S, S); and labels (B,)."""
    rng, labels = np.random.default_rng(seed), np.arange(count) % 2
    features, adjacency = (
        np.zeros((count, 14, 60 + walks)),
        np.zeros((count, 14, 14), bool),
    )
    for row, label in enumerate(labels):
        size, found = rng.integers(9, 15), None
        while found is None or question(*found) != label:
            found = molecule(size, rng)
        atoms, bonds, _ = found
        edges, hydrogens = bonds > 0, VALENCES[atoms] - bonds.sum(axis=1)
        kinds = (4 * atoms + hydrogens) * 5 + edges.sum(axis=1)
        walk = edges / edges.sum(axis=1)
        back = [np.diag(np.linalg.matrix_power(walk, 1 + k)) for k in range(walks)]
        features[row, :size] = np.column_stack([np.eye(60)[kinds], *back])
        adjacency[row, :size, :size] = edges
    return (features, adjacency), labels


def make_model(num_features, pooling="mean", config=CONFIG):
    """Returns a model from features (B, S, F) and edges (B, S, S) to logits (B, 2).

    The graph is the attention mask. A node without features is padding. The state of
    the graph is the mean of its nodes, or that of a class token linked with every node.
    """
    features = keras.Input((None, num_features), name="features")
    edges = keras.Input((None, None), dtype="bool", name="edges")
    states = keras.layers.Dense(config.d_model)(features)
    is_node = ops.any(ops.not_equal(features, 0), axis=-1)  # (B, S)
    mask = ops.logical_and(edges, ops.expand_dims(is_node, 1))
    if pooling == "class_token":
        states = ClassToken()(states)
        with_token = ops.pad(is_node, ((0, 0), (1, 0)), constant_values=True)
        mask = ops.concatenate([ops.expand_dims(is_node, 2), mask], axis=2)
        mask = ops.concatenate([ops.expand_dims(with_token, 1), mask], axis=1)
    states = kt.EncoderStack(config, name="stack")(states, mask=mask)
    if pooling == "class_token":
        state = states[:, 0]
    else:
        state = keras.layers.GlobalAveragePooling1D()(states, mask=is_node)
    state = kt.layers.Dropout(config.dropout_rate)(state)
    logits = keras.layers.Dense(2, name="logits")(state)
    return kt.ExactModel((features, edges), logits)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=("amide", "ring"), default="amide")
    parser.add_argument("--pooling", choices=("mean", "class_token"), default="mean")
    for name, default in {"walks": 0, "molecules": 3000, "epochs": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    question = has_amide if options.task == "amide" else lambda a, b, ring: ring == 6
    inputs, labels = make_data(options.molecules, question, options.walks, seed=1)
    new, new_labels = make_data(options.molecules // 3, question, options.walks, seed=2)
    model = make_model(60 + options.walks, options.pooling)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.001), loss, jit_compile=False)
    model.fit(inputs, labels, batch_size=64, epochs=options.epochs, verbose=2)
    accuracy = np.mean(np.argmax(model.predict(new, verbose=0), axis=-1) == new_labels)
    counts, new_counts = (x[0][..., :60].sum(axis=1) for x in (inputs, new))
    forest = RandomForestClassifier(300, random_state=1).fit(counts, labels)
    baseline = forest.score(new_counts, new_labels)
    print(f"right: {accuracy:.1%} of new molecules; atoms counted: {baseline:.1%}")
    return accuracy, baseline


if __name__ == "__main__":
    main()
