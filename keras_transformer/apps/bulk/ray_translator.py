"""A SavedModel on many processes or machines. Needs the extra `ray`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from keras_transformer.config.options import check_number
from keras_transformer.extras import required
from keras_transformer.formats.versions import latest_version
from keras_transformer.search.translation import Translation

_PART = 128  # texts that a worker gets at a time


class RayTranslator:
    """Translates lists of texts with a SavedModel on workers of Ray.

    Each worker has a copy of the model and gets 128 texts at a time. A call returns
    when all workers are done, so long lists are faster.

    Ray starts on this machine, unless the program has called `ray.init` or the
    environment variable RAY_ADDRESS names a cluster.

    Args:
        model: Directory of a SavedModel, at the same path on every machine.
        workers: Number of workers.
        cpus: Cores, and threads of TensorFlow, of each worker.
        gpus: GPUs of each worker.

    Attributes:
        path: Directory of the version that translates.

    Raises:
        FileNotFoundError: If `model` is not a SavedModel.
        ImportError: If Ray is not installed.
        RuntimeError: In a call, if a worker fails.
        ValueError: If `workers` or `cpus` is less than 1, or the cluster has too few
            CPUs.

    Example:
        >>> translator = RayTranslator("saved_models/en-de", workers=16)
        >>> translate_file(translator, "news.en", "news.de", window=16384)
    """

    def __init__(
        self, model: str | Path, workers: int, cpus: int = 1, gpus: float = 0.0
    ) -> None:
        self.path = latest_version(model).absolute()
        ray = required("ray", "Several workers need Ray", "ray")
        pool = required("ray.util", "Several workers need Ray", "ray").ActorPool
        check_number("workers", workers, int, minimum=1)
        check_number("cpus", cpus, int, minimum=1)
        check_number("gpus", gpus, minimum=0)
        if not ray.is_initialized():
            options = {"logging_level": "ERROR"}
            if not os.environ.get("RAY_ADDRESS"):
                options |= {
                    "address": "local",
                    "num_cpus": workers * cpus,
                    "include_dashboard": False,
                    "log_to_driver": False,
                }
            ray.init(**options)
        available = ray.cluster_resources().get("CPU", 0)
        if available < workers * cpus:
            raise ValueError(
                "The cluster must have the CPUs of all workers. Received: "
                f"workers={workers}, cpus={cpus}, {available:.0f} CPUs"
            )
        worker = ray.remote(num_cpus=cpus, num_gpus=gpus)(_Worker)
        self._pool = pool([worker.remote(str(self.path), cpus) for _ in range(workers)])
        self._error = ray.exceptions.RayError

    def __call__(self, texts: list[str]) -> list[str]:
        """Returns one translation for each text, in order."""
        return [best.text for best in self.translate(texts)]

    def translate(self, texts: list[str], *terms: Any) -> list[Translation]:
        """Returns what `TextTranslator.translate` does."""
        return self._run("translate", texts, *terms)

    def nbest(self, texts: list[str], n_best: int = 1) -> list[list[Translation]]:
        """Returns up to `n_best` translations of each sentence, best first."""
        return self._run("nbest", texts, n_best)

    def _run(self, name, texts, *options):
        def run(worker, part):
            return worker.run.remote(name, part, *options)

        parts = [texts[i : i + _PART] for i in range(0, len(texts), _PART)]
        try:
            found = list(self._pool.map(run, parts))
        except self._error as error:
            # Ray's message is the traceback of the worker, with the error at its end.
            *_, cause = str(error).strip().splitlines()
            raise RuntimeError(f"A Ray worker failed: {cause}") from error
        return [translations for part in found for translations in part]


class _Worker:
    def __init__(self, model, cpus):
        # TensorFlow reads these when it is first used in this process.
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(cpus)
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        from keras_transformer.formats import ExportedTranslator

        self._translator = ExportedTranslator(model)

    def run(self, name, texts, *options):
        return getattr(self._translator, name)(texts, *options)
