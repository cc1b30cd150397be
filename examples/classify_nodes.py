"""Node classification in a citation graph, with attention along links.

The fields of a few papers are known; the others follow from their words and links. The
baseline is logistic regression on the words.

    python examples/classify_nodes.py --files nodes.tsv.gz edges.tsv.gz

A line of the first file contains a node's name, its split (train, valid, ...), its
class and the numbers of its words; a line of the second names two nodes. Default: a
generated graph.
"""

import argparse
import gzip
import keras_transformer.quiet

import keras
import numpy as np
from sklearn.linear_model import LogisticRegression

import keras_transformer as kt
from keras_transformer import plots

CONFIG = kt.EncoderConfig(
    num_layers=2, d_model=64, d_ff=16, num_heads=4, dropout_rate=0.5,
    attention_dropout_rate=0.0,
)  # fmt: skip


def read_graph(nodes, edges):
    """Returns features (N, F), links (E, 2), classes (N,) from 1 on, splits (N,)."""
    with gzip.open(nodes, "rt") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    number = {row[0]: i for i, row in enumerate(rows)}
    with gzip.open(edges, "rt") as file:
        links = np.array([[number[node] for node in line.split()] for line in file])
    words = [np.array(row[3].split(), int) for row in rows]
    features = np.zeros((len(rows), 1 + max(w.max() for w in words if w.size)))
    for node, own in enumerate(words):
        features[node, own] = 1.0
    classes = 1 + np.array([int(row[2]) for row in rows])
    return features, links, classes, np.array([row[1] for row in rows])


def make_graph(num_nodes=400, num_classes=4, num_words=300):
    """Returns a graph as `read_graph`: nodes of a class share links and some words."""
    rng = np.random.default_rng(1)
    classes = rng.integers(1, num_classes + 1, num_nodes)
    alike = classes[:, None] == classes
    links = np.argwhere(rng.random(alike.shape) < np.where(alike, 0.03, 0.003))
    is_own = np.arange(num_words) % num_classes == classes[:, None] - 1
    features = rng.random(is_own.shape) < np.where(is_own, 0.06, 0.03)
    splits = np.where(np.arange(num_nodes) < 10 * num_classes, "train", "valid")
    return features.astype(float), links, classes, splits


def make_model(num_features, num_classes, config=CONFIG, rate=0.9):
    """Returns a model of two layers with much dropout; nodes see two links far.

    It maps features (B, S, F) and edges (B, S, S), True at [t, s] where node t attends
    to node s, to logits (B, S, classes). The graph is the attention mask.
    """
    features = keras.Input((None, num_features), name="features")
    edges = keras.Input((None, None), dtype="bool", name="edges")
    states = keras.layers.Dense(config.d_model)(kt.layers.Dropout(rate)(features))
    states = kt.EncoderStack(config, name="stack")(states, mask=edges)
    states = kt.layers.Dropout(config.dropout_rate)(states)
    logits = keras.layers.Dense(1 + num_classes, name="logits")(states)
    return kt.ExactModel((features, edges), logits)


def attention(model, inputs):
    """Returns the attention weights of the last layer (B, H, S, S)."""
    last = model.get_layer("stack").encoder_layers[-1]
    with kt.layers.recorded_attention() as record:
        model(inputs)
    return keras.ops.convert_to_numpy(record[last.self_attention][0])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs=2, metavar=("NODES", "EDGES"), help="gzip")
    parser.add_argument("--picture", default="nodes.png", help="attention, drawn")
    parser.add_argument("--epochs", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(options.seed)
    graph = read_graph(*options.files) if options.files else make_graph()
    features, links, classes, splits = graph
    train, valid = splits == "train", splits == "valid"

    words_alone = LogisticRegression(max_iter=1000)
    words_alone.fit(features[train], classes[train])
    baseline = words_alone.score(features[valid], classes[valid])

    # A node attends to its neighbours; its own words pass by the residual connection.
    adjacency = np.zeros([len(features)] * 2, bool)
    adjacency[links[:, 0], links[:, 1]] = adjacency[links[:, 1], links[:, 0]] = True
    # One graph is a batch of one; class 0 is unknown.
    lengths = np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1)
    inputs = (features / lengths)[None].astype("float32"), adjacency[None]
    known = np.where(train, classes, 0)[None]
    model = make_model(features.shape[1], int(classes.max()))
    # The accuracy varies by a point or two between epochs: average the weights.
    mean = {"use_ema": True, "ema_momentum": 0.98}
    optimizer = keras.optimizers.AdamW(0.005, weight_decay=0.01, **mean)
    model.compile(optimizer, kt.MaskedCrossentropy(), jit_compile=False)
    model.fit(inputs, known, epochs=options.epochs, verbose=0)
    predicted = np.argmax(model.predict(inputs, verbose=0)[0], axis=-1)
    accuracy = np.mean(predicted[valid] == classes[valid])
    print(f"right: {accuracy:.1%}; logistic regression of the words: {baseline:.1%}")
    near = np.append(0, np.flatnonzero(adjacency[0]))  # A node and its neighbours.
    weights = attention(model, inputs)[0][:, near][..., near]
    names = near.astype(str)
    plots.attention(weights.mean(axis=0), names, names).savefig(options.picture)
    return accuracy, baseline


if __name__ == "__main__":
    main()
