"""Tagging words by one word alone, by a window of 11, and by attention to all.

    python examples/why/windows.py
    python examples/why/windows.py --files train.tsv.gz valid.tsv.gz

"I saw a saw" cannot be tagged by one word. In the generated sentences the first word
decides whether "cut", "hit", ... are past or present, however far away they stand.
Attention weighs by softmax, and once by ReLU.
"""

from collections import Counter
import keras_transformer.quiet

import keras
import numpy as np
import report
from window_nets import NEAR, make_model
from window_sentences import BOTH, LONGEST, make_sentences, read_sentences, to_arrays

PARTS = ["noun or verb", "time near", "time far"]


def shares_right(guesses, ids, tags, words, names):
    """Returns the shares right of what the columns of `PARTS` say."""
    right, noun = guesses == tags, names["NOUN"]
    is_both = np.isin(ids, [words[word] for word in BOTH])
    is_timed = np.isin(ids[:, :1], [words["yesterday"], words["nowadays"]])
    is_verb = is_both & (tags != noun) & is_timed
    is_near = np.arange(LONGEST) <= NEAR
    is_noun_right = (guesses == noun) == (tags == noun)
    verbs = is_verb & is_near, is_verb & ~is_near
    return [is_noun_right[is_both].mean(), *(right[part].mean() for part in verbs)]


def main(arguments=None):
    kinds = ("one word", "window", "attention", "ReLU attention")
    parser = report.parser(__doc__, kinds=kinds, sentences=3000, epochs=5, seeds=3)
    parser.add_argument("--files", nargs=2, help="lines of words, tab, tags; gzip")
    options = parser.parse_args(arguments)
    files = options.files and map(read_sentences, options.files)
    train, test = files or (make_sentences(options.sentences, s) for s in (1, 2))
    train = train[: options.sentences]
    counts = Counter(word.lower() for s in train for word, _ in s)
    words = {w: n for n, (w, c) in enumerate(counts.most_common(), 2) if c > 1}
    tags = sorted({tag for s in train + test for _, tag in s})
    tags = {tag: number for number, tag in enumerate(tags, 1)}
    (x, y), (new_x, new_y) = (to_arrays(part, words, tags) for part in (train, test))
    saw = np.array([[words.get(word, 1) for word in "i saw a saw".split()]])
    parts = [] if options.files else PARTS
    report.show(["net", "parameters", "all words", *parts, "I saw a saw"], [])
    found = {}
    for kind in options.kinds:
        runs = []
        for seed in range(1, 1 + options.seeds):
            keras.utils.set_random_seed(seed)
            model = make_model(kind, 2 + len(words), 1 + len(tags))
            model.fit(x, y, 32, epochs=options.epochs, verbose=0)
            guesses = model.predict(new_x, verbose=0).argmax(-1)
            runs.append([(guesses == new_y)[new_y > 0].mean()])
            if parts:
                runs[-1] += shares_right(guesses, new_x, new_y, words, tags)
        said = np.array([*tags])[model.predict(saw, verbose=0)[0, :, 1:].argmax(-1)]
        found[kind] = np.transpose(runs).tolist(), said.tolist()
        row = [kind, model.count_params(), *found[kind][0], " ".join(said)]
        report.show_rows([row])
    return found


if __name__ == "__main__":
    main()
