"""Translations over REST from TensorFlow Serving with a LiteRT file: ids in, ids out.

The standard library and `sentencepiece` are all it needs, and of the export, made with
`--format litert_serving`, translator.json and the SentencePiece models.

    python examples/litert_rest_client.py --export litert_models/quickstart-en-de/1 \\
        --model quickstart-en-de "She is tired."
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import sentencepiece


class Client:
    """Cuts texts into pieces, lets a server translate them, and joins what it finds.

    Args:
        export: Directory of the export.
        model: The model's name, which is NAME in NAME/VERSION.
        server: URL of the server.
        timeout: Longest wait for the answer to a request, in seconds.
    """

    def __init__(self, export, model, server="http://127.0.0.1:8503", timeout=60):
        text = (Path(export) / "translator.json").read_text(encoding="utf-8")
        description = json.loads(text)
        self.url = f"{server}/v1/models/{model}:predict"
        self.timeout = timeout
        self.ids = description["special_ids"]
        self.longest = description["max_source_length"]
        self.source, self.target = (
            sentencepiece.SentencePieceProcessor(model_file=str(Path(export) / name))
            for name in map(description["tokenizers"].get, ("source", "target"))
        )

    def translate(self, texts, batch_size=32):
        """Returns pairs: the translation and the score of each text."""
        results = []
        for start in range(0, len(texts), batch_size):
            pieces = self.source.encode(texts[start : start + batch_size])
            rows = [row[: self.longest - 1] + [self.ids["end_id"]] for row in pieces]
            width = max(map(len, rows))
            padded = [r + [self.ids["pad_id"]] * (width - len(r)) for r in rows]
            found = self.post({"instances": [{"source": row} for row in padded]})
            for row, result in zip(rows, found["predictions"], strict=True):
                # The end alone is a text without words, -inf a search without success.
                score = result["scores"] if len(row) > 1 else 0.0
                is_found = len(row) > 1 and score > float("-inf")
                results.append((self.joined(result["ids"]) if is_found else "", score))
        return results

    def joined(self, ids):
        """Returns the text of the ids up to the first end."""
        if self.ids["end_id"] in ids:
            ids = ids[: ids.index(self.ids["end_id"])]
        skipped = (self.ids["pad_id"], self.ids["start_id"])
        return self.target.decode([i for i in ids if i not in skipped])

    def post(self, body):
        """Sends a JSON body and returns the JSON answer."""
        headers = {"Content-Type": "application/json"}
        content = json.dumps(body).encode("utf-8")
        request = urllib.request.Request(self.url, content, headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:  # The reason is in the answer: {"error": "..."}.
                reason = error.read().decode("utf-8", "replace").strip()
            raise OSError(f"{self.url} answered {error.code}: {reason}") from error
        except urllib.error.URLError as error:
            raise OSError(f"{self.url} gives no answer: {error.reason}") from error


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="sentences")
    parser.add_argument("--export", required=True, help="directory of the export")
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument("--server", default="http://127.0.0.1:8503", help="its URL")
    options = parser.parse_args(arguments)
    try:
        client = Client(options.export, options.model, options.server)
        for translation, score in client.translate(options.texts):
            print(f"{score:.3f}  {translation}")
    except OSError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
