"""Translations over REST from TensorFlow Serving or `keras-transformer serve`.

It needs only the standard library.

    python examples/rest_client.py --model quickstart-en-de "She is tired."
"""

import argparse
import json
import sys
import urllib.error
import urllib.request

NAMES = "translation", "score", "truncated", "doubts"


def translate(texts, model, server="http://127.0.0.1:8501", batch_size=32, timeout=60):
    """Returns of each text its translation, score, if it was cut, doubts, and losses.

    Args:
        texts: Sentences.
        model: The model's name, which is NAME in saved_models/NAME/VERSION.
        server: URL of the server.
        batch_size: Sentences in a request, at most `max_batch_size` of the server.
        timeout: Longest wait for the answer to a request, in seconds.

    Returns:
        Tuples of a string, a number, a boolean, a string of words such as "loop", and
        a list of what the translation lacks, such as a URL.

    Raises:
        OSError: If there is no answer, or the answer is an error.
    """
    url = f"{server}/v1/models/{model}:predict"
    results = []
    for start in range(0, len(texts), batch_size):
        instances = [{"text": text} for text in texts[start : start + batch_size]]
        body = {"signature_name": "serving_default", "instances": instances}
        for row in post(url, body, timeout)["predictions"]:
            # An imported model may carry no spans; else rows are padded.
            lost = [span for span in row.get("lost", ()) if span]
            results.append((*(row[name] for name in NAMES), lost))
    return results


def post(url, body, timeout):
    """Sends a JSON body and returns the JSON answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode("utf-8"), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:  # The reason is in the answer: {"error": "..."}.
            reason = error.read().decode("utf-8", "replace")
        raise OSError(f"{url} answered {error.code}: {reason.strip()}") from error
    except urllib.error.URLError as error:
        raise OSError(f"{url} gives no answer: {error.reason}") from error


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="sentences")
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument("--server", default="http://127.0.0.1:8501", help="its URL")
    options = parser.parse_args(arguments)
    try:
        results = translate(options.texts, options.model, options.server)
    except OSError as error:
        sys.exit(f"error: {error}")
    for i, (translation, score, is_cut, doubts, lost) in enumerate(results, start=1):
        print(f"{score:.3f}  {translation}")
        if is_cut:
            print(f"sentence {i} is too long and was cut", file=sys.stderr)
        if doubts:
            print(f"translation {i} is doubtful: {doubts}", file=sys.stderr)
        if lost:
            print(f"translation {i} lacks {', '.join(lost)}", file=sys.stderr)


if __name__ == "__main__":
    main()
