"""The Kubernetes manifest that runs TensorFlow Serving for an export."""

from __future__ import annotations

import re

from keras_transformer.export.compose import IMAGE, XLA_FLAG
from keras_transformer.export.sizing import (
    BATCHES_AT_ONCE,
    MIB,
    USUAL_TOKENS,
    ServerMemory,
)

# Where the server tells Prometheus its figures.
METRICS = "/monitoring/prometheus/metrics"

_MANIFEST = """\
# TensorFlow Serving for this model in Kubernetes: kubectl apply -f kubernetes.yml
# REST at http://{object}:8501/v1/models/{name}, gRPC at
# {object}:8500, within the cluster. Yours to edit: written once, by the first export.
#
# The pods read this directory at /models/{name}. Either of
# - a PersistentVolumeClaim called {object} that holds it, as below, such as
#     apiVersion: v1
#     kind: PersistentVolumeClaim
#     metadata: {{name: {object}}}
#     spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 2Gi}}}}}}
#   Copy it there by a pod that may write to the claim: kubectl cp . POD:DIRECTORY. A
#   version that is copied while the server runs must appear whole: copy it under
#   another name, then rename it in that pod;
# - on a cluster of one node, `hostPath: {{path: /this/directory, type: Directory}}` in
#   place of `persistentVolumeClaim`;
# - an image of your own, in place of `image` and without volumes; its Dockerfile:
#   FROM {image}
#   COPY . /models/{name}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {object}
  labels:
    app: {object}
spec:
  replicas: 1
  selector:
    matchLabels:
      app: {object}
  template:
    metadata:
      labels:
        app: {object}
      annotations:
        # Read by many installations of Prometheus; Kubernetes itself ignores them.
        prometheus.io/scrape: "true"
        prometheus.io/port: "8501"
        prometheus.io/path: {metrics}
    spec:
      # TensorFlow Serving has no handler for SIGTERM, and the first process of a
      # container ignores a signal without one: with this it is not the first.
      shareProcessNamespace: true
      # It ends at once then, with what it translates: first `preStop` waits until no
      # more requests come and those that run have ended, at the latest after 30 s
      # (--rest_api_timeout_in_ms).
      terminationGracePeriodSeconds: 45
      automountServiceAccountToken: false
      containers:
        - name: serving
          image: {image}
          # Without the image's shell, which passes no signal on.
          command:
            - tensorflow_model_server
          args:
            - --port=8500
            - --rest_api_port=8501
            - --model_config_file=/models/{name}/models.config
            - --enable_batching
            - --batching_parameters_file=/models/{name}/batching_parameters.txt
            - --monitoring_config_file=/models/{name}/monitoring.config
            # Else TensorFlow starts as many threads as the node has cores, whatever
            # the limit below.
            - --tensorflow_session_parallelism={cores}
{flag}          ports:
            - name: grpc
              containerPort: 8500
            - name: rest
              containerPort: 8501
          # The port opens once the first version is loaded and warmed up; another name
          # than the model's is answered with 404.
          startupProbe:
            httpGet:
              path: /v1/models/{name}
              port: rest
            periodSeconds: 5
            failureThreshold: 120
          readinessProbe:
            httpGet:
              path: /v1/models/{name}
              port: rest
            periodSeconds: 10
            timeoutSeconds: 5
          # The port alone: a server whose threads all translate answers late, gets no
          # more requests by the probe above, and must not be started anew.
          livenessProbe:
            tcpSocket:
              port: rest
            periodSeconds: 30
            timeoutSeconds: 5
          lifecycle:
            preStop:
              exec:
                command: [sleep, "35"]
          resources:
{resources}          securityContext:
            allowPrivilegeEscalation: false
            capabilities:
              drop: [ALL]
          volumeMounts:
            - name: models
              mountPath: /models/{name}
              readOnly: true
      volumes:
        - name: models
          persistentVolumeClaim:
            claimName: {object}
            readOnly: true
---
apiVersion: v1
kind: Service
metadata:
  name: {object}
  labels:
    app: {object}
spec:
  selector:
    app: {object}
  ports:
    - name: grpc
      port: 8500
      targetPort: grpc
    - name: rest
      port: 8501
      targetPort: rest
"""

_MEMORY = """\
            # Memory is an estimate. Requested is what sentences of {tokens} tokens
            # need; a pod that takes more than the limit is ended:
            # {estimate}.
            requests:
              cpu: "1"
              memory: {usual}Mi
            limits:
              cpu: "{cores}"
              memory: {most}Mi
"""

_CORES = """\
            requests:
              cpu: "1"
            limits:
              cpu: "{cores}"
"""

_FLAG = f"""\
            # A version was exported with `jit_compile`.
            - {XLA_FLAG}
"""


def manifest(name: str, jit_compile: bool, memory: ServerMemory | None) -> str:
    """Returns kubernetes.yml of a model: a Deployment and its Service.

    Args:
        name: The model's name, of `model_name`.
        jit_compile: Whether XLA compiles the signatures.
        memory: What the server needs, or `None` for no limit.
    """
    resources = _CORES.format(cores=BATCHES_AT_ONCE)
    if memory is not None:
        resources = _MEMORY.format(
            tokens=USUAL_TOKENS,
            estimate=memory.in_words("            # "),
            usual=memory.usual // MIB,
            most=memory.most // MIB,
            cores=BATCHES_AT_ONCE,
        )
    return _MANIFEST.format(
        name=name,
        object=object_name(name),
        image=IMAGE,
        metrics=METRICS,
        cores=BATCHES_AT_ONCE,
        flag=_FLAG if jit_compile else "",
        resources=resources,
    )


def object_name(name: str) -> str:
    """Returns the name of a model's objects in Kubernetes.

    A name of a host, which alone a Service may have: up to 63 small letters, digits and
    "-", the first a letter.

    Args:
        name: The model's name, of `model_name`.

    Example:
        >>> object_name("EN_de.v2")
        'translator-en-de-v2'
    """
    word = re.sub("[^a-z0-9]+", "-", f"translator-{name}".lower())
    return word[:63].strip("-")
