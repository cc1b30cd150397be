"""Random requests, good and spoiled, each with the answer that it must get."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tests.serving.fuzz_good import PREDICT, Case, GoodRequests, to_base64

MAX_REQUEST_MIB = 0.5
MAX_INSTANCES = 64


class Fuzzer(GoodRequests):
    """Makes random cases, always the same ones for the same seed."""

    def case(self) -> Case:
        """Returns a case: about four of ten are good."""
        if self.random.random() < 0.4:
            return self.good()[0]
        kinds = [
            value
            for name, value in sorted(vars(Fuzzer).items())
            if name.startswith("_bad_")
        ]
        return self.random.choice(kinds)(self)

    # Each spoils a good request, so that it must be answered with an error.

    def _bad_cut(self):
        case, _ = self.good()
        cut = case.content[: self.random.randrange(len(case.content))]
        return dataclasses.replace(case, content=cut, status=400, answer=None)

    def _bad_noise(self):
        noise = b"\xff" + self.random.randbytes(self.random.randint(0, 300))
        return Case("POST", PREDICT, noise, 400)

    def _bad_flip(self):
        """One byte changed may leave a good request: then only the class is known."""
        case, _ = self.good()
        content = bytearray(case.content)
        content[self.random.randrange(len(content))] = self.random.randrange(256)
        return dataclasses.replace(
            case, content=bytes(content), status=(200, 400), answer=None
        )

    def _bad_encoding(self):
        spoiled = self.random.choice(
            [
                b"\xff",
                b"\xc0\x80",
                b"\xed\xa0\x80",
                b"\\ud83d",
                b"\\udc00",
                b"\\x41",
                b"\n",
            ]
        )
        return Case("POST", PREDICT, b'{"instances": ["' + spoiled + b'"]}', 400)

    def _bad_number(self):
        number = self.random.choice(
            [b"1e999", b"-1e400", b"01", b"1.", b"+1", b"0x1", b"9" * 5000, b"3.5e38",
             b"16777217", b"--1", b"1e", b"true", b"null", b'"1"', b"{}"]
        )  # fmt: skip
        body = b'{"signature_name": "half", "instances": [[1, %s]]}' % number
        return Case("POST", PREDICT, body, 400)

    def _bad_leaf(self):
        """A value of the wrong type."""
        name, values = self.random.choice(
            [
                (
                    "x",
                    [
                        None,
                        True,
                        1,
                        1.5,
                        [],
                        {},
                        {"b64": 1},
                        {"b64": "a"},
                        {"b64": "*"},
                    ],
                ),
                (
                    "times",
                    [None, True, 1.0, "1", 2**31, -(2**31) - 1, float("nan"), {}],
                ),
                ("flag", [None, 0, "true", 1.0]),
                ("wide", [2**63, 1.0, True, "1"]),
                ("small", [-1, 256, 1.0, True]),
            ]
        )
        value = self.random.choice(values)
        if name == "x":
            return self.post({"signature_name": "echo", "instances": [value]}, 400)
        row = {"text": "a", "times": 1}
        if name != "times":
            row = {"flag": True, "wide": 1, "exact": 1.0, "small": 1}
        signature = "repeat" if name == "times" else "kinds"
        rows = [dict(row), dict(row, **{name: value})]
        return self.post({"signature_name": signature, "instances": rows}, 400)

    def _bad_shape(self):
        values = self.random.choice(
            [
                [1.0],
                [[1.0]],
                [[1.0, 2.0, 3.0]],
                [[1.0, 2.0], [3.0]],
                [[1.0, 2.0], 3.0],
                [[[1.0, 2.0]]],
                [[[1.0], [2.0]]],
                [[], []],
                [[1.0, [2.0]]],
            ]
        )
        form = self.random.choice(["instances", "inputs"])
        return self.post({"signature_name": "half", form: values}, 400)

    def _bad_nesting(self):
        depth = self.random.choice([2, 10, 254, 255, 300, 900, 5000, 100_000])
        opening, closing = self.random.choice([(b"[", b"]"), (b'{"a":', b"}")])
        inner = opening * depth + b"1" + closing * depth
        form = self.random.choice([b"instances", b"inputs"])
        body = b'{"%s": [%s]}' % (form, inner)
        return Case("POST", PREDICT, body, 400 if len(body) < 2**19 else 413)

    def _bad_keys(self):
        _, body = self.good()
        row = {"text": "a", "times": 1}
        change = self.random.choice(
            [
                {"signature_name": self.text() + "x"},
                {"signature_name": self.random.choice([1, None, [], {}, True])},
                {"instances": ["a"], "inputs": ["a"]},
                {"instances": []} if "instances" in body else {"instances": ["a"]},
                {"signature_name": "repeat", "instances": [row, {"text": "a"}]},
                {"signature_name": "repeat", "instances": [row, dict(row, x=1)]},
                {"signature_name": "repeat", "instances": [row, "a"]},
            ]
        )
        if change.get("signature_name") == "repeat":
            body = {}
        return self.post({**body, **change}, 400)

    def _bad_document(self):
        document = self.random.choice(
            [{}, [], "a", 1, None, {"instances": {}}, {"x": 1}]
        )
        return self.post(document, 400)

    def _bad_columns(self):
        columns = self.random.choice(
            [
                {"text": ["a"]},
                ["a"],
                "a",
                {"text": [], "times": {}},
                {},
                {"b64": "YQ=="},
            ]
        )
        return self.post({"signature_name": "repeat", "inputs": columns}, 400)

    def _bad_run(self):
        """Fails only when it runs, perhaps joined with good neighbours."""
        rows = [{"text": "a", "times": 1}, {"text": "b", "times": 0}]
        return self.post({"signature_name": "repeat", "instances": rows}, 400)

    def _bad_sizes(self):
        """Columns of unlike sizes fail in the graph."""
        columns = {"text": ["a"], "times": [1, 2]}
        return self.post({"signature_name": "repeat", "inputs": columns}, 400)

    def _bad_rows(self):
        """An output that has no row for each input."""
        return self.post({"signature_name": "total", "instances": [1.0, 2.0]}, 400)

    def _bad_many(self):
        rows = ["a"] * self.random.choice([MAX_INSTANCES + 1, 5000])
        return self.post({"instances": rows}, 400)

    def _bad_large(self):
        size = self.random.choice([2**19, 2**20, 3 * 2**20])
        return self.post({"instances": ["a" * size]}, 413)

    def _bad_path(self):
        noise = "".join(self.random.choice("abcABC019_-.~%20") for _ in range(9))
        name = "x" + noise.replace("%", "")
        number = self.random.randint(2, 99)
        other = self.random.choice(["PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
        method, path, status = self.random.choice(
            [
                ("POST", f"/v1/models/{name}:predict", 404),
                ("POST", f"/v1/models/tiny/versions/{number}:predict", 404),
                ("POST", f"/v1/models/tiny/versions/{name}:predict", 400),
                ("POST", f"/v1/models/tiny/versions/{10**30}:predict", 400),
                ("POST", f"/v1/models/tiny/labels/{name}:predict", 400),
                ("POST", f"/v1/models/tiny:{name}", 400),
                ("POST", "/v1/models/tiny:classify", 400),
                ("POST", f"/v1/{name}", 400),
                ("POST", f"/{name}", 404),
                ("GET", PREDICT, 400),
                ("GET", f"/v1/models/{name}", 404),
                ("GET", f"/v1/models/{name}/metadata", 404),
                ("GET", f"/v1/models/tiny/versions/{number}", 404),
                ("GET", f"/v1/models/tiny/{name}", 400),
                ("GET", "/v1/models", 400),
                (other, PREDICT, 400),
            ]
        )  # fmt: skip
        return Case(method, path, b'{"instances": ["a"]}', status)

    def _bad_http(self):
        """No HTTP at all, or a broken one."""
        content = self.random.choice(
            [
                self.random.randbytes(self.random.randint(1, 200)) + b"\r\n\r\n",
                b"GET /v1/models/\xff\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"POST " + PREDICT.encode() + b" HTTP/9.9\r\n\r\n",
                b"POST " + PREDICT.encode() + b" HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 1_000_000,
            ]
        )
        return Case("RAW", "", content, 400)

    # Unusual, and good.

    def _bad_looking_but_good(self):
        text = "a" * self.random.choice([0, 1, 100_000, 500_000])
        echo = {"signature_name": "echo"}
        return self.random.choice(
            [
                self.post({**echo, "inputs": []}, 200, {"outputs": []}),
                self.post({**echo, "inputs": {"data": []}}, 200, {"outputs": []}),
                self.post(
                    {**echo, "inputs": [text]},
                    200,
                    {"outputs": [{"b64": to_base64(text.encode())}]},
                ),
                self.post(
                    {**echo, "instances": ["a"], "more": [1]},
                    200,
                    {"predictions": [{"b64": "YQ=="}]},
                ),
                Case("POST", PREDICT + "?a=b", b'{"inputs": "a"}', 400),
                Case("GET", "/v1/models/tiny", b"", 200, _is_status),
                Case("GET", "/v1/models/tiny/versions/1", b"", 200, _is_status),
                Case("GET", "/v1/models/tiny/metadata", b"", 200, _is_metadata),
            ]
        )  # fmt: skip


def _is_status(answer):
    return [v["state"] for v in answer["model_version_status"]] == ["AVAILABLE"]


def _is_metadata(answer):
    return "echo" in answer["metadata"]["signature_def"]["signature_def"]


def fits(case: Case, answer: Any) -> bool:
    """Whether the JSON of a response's body is what the case must get."""
    if isinstance(case.answer, Callable):
        return case.answer(answer)
    if case.answer is not None:
        return answer == case.answer
    return list(answer) == ["error"] and isinstance(answer["error"], str)
