"""Translations from TensorFlow Serving over gRPC.

It needs `pip install ".[grpc]"` in the clone of this repository.

    python examples/grpc_client.py --model quickstart-en-de "She is tired."
"""

import argparse
import sys

import tensorflow as tf

try:
    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
except ImportError as error:
    raise ImportError(
        'gRPC needs an extra: `pip install ".[grpc]"` in the clone of this repository.'
    ) from error

NAMES = "translation", "score", "truncated", "doubts", "lost"


def translate(texts, model, server="127.0.0.1:8500", batch_size=32, timeout=60):
    """Returns of each text its translation, score, if it was cut, doubts, and losses.

    Args:
        texts: Sentences.
        model: The model's name, which is NAME in saved_models/NAME/VERSION.
        server: Host and port of the server.
        batch_size: Sentences in a request, at most `max_batch_size` of the server.
        timeout: Longest wait for the answer to a request, in seconds.

    Returns:
        Tuples of a string, a number, a boolean, a string of words such as "loop", and
        a list of what the translation lacks, such as a URL.

    Raises:
        grpc.RpcError: If there is no answer, or the answer is an error.
    """
    results = []
    with grpc.insecure_channel(server) as channel:
        service = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for start in range(0, len(texts), batch_size):
            request = make_request(texts[start : start + batch_size], model)
            outputs = service.Predict(request, timeout=timeout).outputs
            found = {name: tf.make_ndarray(outputs[name]).tolist() for name in outputs}
            # An imported model may carry no spans, and then has no such output.
            found.setdefault("lost", [[]] * len(found["score"]))
            columns = [found[name] for name in NAMES]
            for text, score, is_cut, doubts, lost in zip(*columns, strict=True):
                spans = [span.decode() for span in lost if span]  # Padded.
                results.append((text.decode(), score, is_cut, doubts.decode(), spans))
    return results


def make_request(texts, model):
    """Returns the PredictRequest of some sentences."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "serving_default"
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts, tf.string))
    return request


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="sentences")
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument("--server", default="127.0.0.1:8500", help="its host and port")
    options = parser.parse_args(arguments)
    try:
        results = translate(options.texts, options.model, options.server)
    except grpc.RpcError as error:
        sys.exit(f"error: {options.server}: {error.code().name}, {error.details()}")
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
