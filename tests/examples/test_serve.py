"""The service of examples/serve beside onnxruntime itself, on free ports of this machine, and what it refuses."""

import importlib.util
import json
import math
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from hidden_uncertainty import Monitor

FOLDER = Path(__file__).parents[2] / "examples" / "serve"


def module(name):
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


serve, load = module("serve"), module("load")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A graph with the outputs that `export` writes: how far inputs are from (1, 2); and the state of a monitor."""
    folder = tmp_path_factory.mktemp("serve")
    constants = {"centre": np.float32([1, 2]), "axis": np.int64([1]), "limit": np.float32(3), "half": np.float32(0.5)}
    nodes = [
        ("Sub", ["x", "centre"], "away", {}),
        ("ReduceL2", ["away", "axis"], "epistemic", {"keepdims": 0}),
        ("ReduceSum", ["x", "axis"], "aleatoric", {"keepdims": 0}),
        ("Greater", ["epistemic", "limit"], "surprising", {}),
        ("ArgMax", ["x"], "prediction", {"axis": 1, "keepdims": 0}),
        ("Neg", ["epistemic"], "minus", {}),
        ("Exp", ["minus"], "p_value", {}),
    ]
    kinds = {"prediction": TensorProto.INT64, "epistemic": TensorProto.FLOAT, "aleatoric": TensorProto.FLOAT}
    kinds |= {"p_value": TensorProto.FLOAT, "surprising": TensorProto.BOOL}
    write(
        folder / "blobs.onnx",
        nodes,
        {"x": (TensorProto.FLOAT, [2])},
        {name: (kinds[name], []) for name in kinds},
        constants,
    )
    Monitor(np.linspace(0, 2.5, 500)).save(folder / "monitor.safetensors")
    return folder


@pytest.fixture(scope="module")
def x():
    return np.r_[np.random.default_rng(0).normal((1, 2), 0.8, (40, 2)), np.full((5, 2), 40.0)].astype(np.float32)


def write(path, nodes, inputs, outputs, constants=None):
    inputs, outputs = (
        [helper.make_tensor_value_info(name, kind, ["batch", *shape]) for name, (kind, shape) in some.items()]
        for some in (inputs, outputs)
    )
    made = [helper.make_node(kind, given, [name], **more) for kind, given, name, more in nodes]
    known = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(made, "graph", inputs, outputs, known)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"hidden_uncertainty.task": '{"name": "classification"}'})
    onnx.save(model, path)


def two_inputs(path):
    """A network that looks up its second input in its first, and fails where there is no such place."""
    node = ("GatherElements", ["table", "place"], "epistemic", {"axis": 1})
    given = {"table": (TensorProto.FLOAT, [3]), "place": (TensorProto.INT64, [1])}
    write(path, [node], given, {"epistemic": (TensorProto.FLOAT, [1])})


class Slow:
    """A session that counts its runs, and waits before each until it may go on."""

    def __init__(self, session):
        self.session, self.sizes, self.go = session, [], threading.Event()

    def run(self, names, given):
        self.sizes.append(len(next(iter(given.values()))))
        assert self.go.wait(10)
        return self.session.run(names, given)


@contextmanager
def serving(path, *, slow=False, monitor=None, **limits):
    app = serve.create(str(path), serve.Limits(**{"rate": 0.0} | limits), monitor=monitor, threads=1)
    if slow:
        app.state.batcher.model.session = Slow(app.state.batcher.model.session)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        app.state.port = listening.getsockname()[1]
        server = app.state.server = serve.server_of(app, port=app.state.port)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            until(lambda: server.started or not thread.is_alive())
            yield app
        finally:
            if slow:
                app.state.batcher.model.session.go.set()
            server.should_exit = True
            thread.join(20)
    assert not thread.is_alive()


def until(true, seconds=10.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def ask(app, body):
    client = load.Client(app.state.port)
    try:
        return client.ask(load.post(body if isinstance(body, bytes) else json.dumps(body).encode()))
    finally:
        client.close()


def get(app, path):
    client = load.Client(app.state.port)
    try:
        status, text = client.ask(f"GET {path} HTTP/1.1\r\nhost: here\r\n\r\n".encode())
        return status, text.decode()
    finally:
        client.close()


def direct(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(names, {session.get_inputs()[0].name: x}), strict=True))
    return [{name: found[name][i].item() for name in names} for i in range(len(x))]


def close(found, expected):
    assert [list(line) for line in found] == [list(line) for line in expected]
    for line, other in zip(found, expected, strict=True):
        assert line == pytest.approx(other, rel=1e-5, abs=1e-5)


@pytest.fixture(scope="module")
def app(files):
    with serving(files / "blobs.onnx", body=5000, batch=8, read=0.5) as app:
        yield app


def test_answers_are_those_of_onnxruntime(app, files, x):
    expected = direct(files / "blobs.onnx", x)
    names = ["prediction", "epistemic", "aleatoric", "p_value", "surprising"]
    assert list(expected[0]) == names and expected[-1]["surprising"] and not all(e["surprising"] for e in expected)
    for i in range(0, len(x), 5):
        bodies = {1: x[i].tolist(), 2: {"x": x[i : i + 2].tolist()}, 3: load.npy(x[i : i + 3])}
        bodies[4] = load.npy(np.asfortranarray(x[i : i + 4].astype(np.float64)))
        for count, body in bodies.items():
            status, text = ask(app, body)
            assert status == 200 and text.count(b"\n") == count
            close([json.loads(line) for line in text.splitlines()], expected[i : i + count])
    found = json.loads(ask(app, [math.inf, 1.0])[1])
    assert found["surprising"] and found["epistemic"] is found["aleatoric"] is None


HEADER = b"{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n"


def headed(kind, shape, data=b"", version=b"\x01\x00"):
    header = HEADER % (kind, shape)
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + data


BAD = {
    "no JSON": (b"[1, 2", 400, "neither JSON nor .npy"),
    "empty": (b"", 400, "neither JSON nor .npy"),
    "bytes": (b"\xff\xfe\x00", 400, "neither JSON nor .npy"),
    "deep": (b"[" * 4000, 400, "neither JSON nor .npy"),
    "digits": (b"[1, " + b"9" * 4500 + b"]", 400, "neither JSON nor .npy"),
    "shape": ([1, 2, 3], 422, "expected float32 numbers of shape (2,) per input, alone or stacked; got shape (3,)"),
    "ragged": ([[1], [1, 2]], 422, "do not all have the same length"),
    "text": ([1, "2"], 422, "text, null"),
    "null": ([1, None], 422, "text, null"),
    "no inputs": (load.npy(np.zeros((0, 2))), 422, "at least one input"),
    "names": ({"y": [1, 2]}, 422, 'expected JSON with all inputs of the network by name and nothing else: {"x"'),
    "more names": ({"x": [1, 2], "y": 1}, 422, "nothing else"),
    "large numbers": ([1e300, 1], 422, "too large for float32"),
    "complex": (load.npy(np.zeros(2, complex)), 422, "complex128"),
    "objects": (headed(b"|O", b"(2,)", b"x" * 16), 422, "expected numbers"),
    "cut npy": (load.npy(np.zeros(2))[:-1], 400, "15 bytes of numbers, its header says 16"),
    "bomb": (headed(b"<f8", b"(4000000000, 4000000000)"), 400, "its header says 128000000000000000000"),
    "endless": (headed(b"<f4", b"(0, 1%s)" % (b"0" * 30)), 400, "which no array has"),
    "dimensions": (headed(b"<f4", b"(%s)" % (b"1," * 70), b"x" * 4), 400, "which no array has"),
    "sizes of truth": (headed(b"<f4", b"(True, 2)", b"x" * 8), 400, "which no array has"),
    "negative": (headed(b"<f4", b"(-1, -2)", b"x" * 8), 422, "expected numbers"),
    "header": (headed(b"<f4", b"__import__('os').abort()"), 400, "header of the .npy cannot be read"),
    "nested header": (headed(b"<f4", b"(" * 3000), 400, "header of the .npy cannot be read"),
    "version": (headed(b"<f4", b"(2,)", b"x" * 8, b"\x09\x00"), 400, "header of the .npy cannot be read"),
    "many": ([[1, 2]] * 9, 413, "9 inputs came in one request: send at most 8"),
    "oversized": (b" " * 5001, 413, "more than 5,000 bytes"),
    "very large": (b" " * 5_000_000, 413, "more than 5,000 bytes"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_input_is_refused_with_a_reason(app, case):
    body, expected, why = BAD[case]
    status, text = ask(app, body)
    assert status == expected and why in json.loads(text)["detail"]
    assert ask(app, [1, 2])[0] == 200


def test_a_body_without_a_stated_size_is_limited_too(app):
    head = b"POST /score HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"
    client = load.Client(app.state.port)
    assert client.ask(head + b"5\r\n[1,2]\r\n0\r\n\r\n")[0] == 200
    status, text = client.ask(head + b"1000\r\n%s\r\n" % (b" " * 4096) * 2 + b"0\r\n\r\n")
    client.close()
    assert status == 413 and b"more than 5,000 bytes" in text


def test_slow_and_cut_off_requests_are_refused_with_a_reason(app):
    for sent, why in {
        load.post(b"[1,", 6): "the body was not here within 0.5 s: 3 bytes came",
        b"POST /score HTTP/1.1\r\nhost: he": "no request was here within 0.5 s",
    }.items():
        client = load.Client(app.state.port)
        status, text = client.ask(sent)
        assert status == 408 and why in json.loads(text)["detail"]
        client.close()
    before = app.state.metrics.requests[400]
    client = load.Client(app.state.port)
    client.socket.sendall(load.post(b"[1,", 6))
    client.socket.shutdown(socket.SHUT_WR)  # it still reads
    status, text = client.answer()
    assert status == 400 and "ended before its body did" in json.loads(text)["detail"]
    client.close()
    client = load.Client(app.state.port)
    client.socket.sendall(load.post(b"[1,", 6))
    client.close()
    until(lambda: app.state.metrics.requests[400] == before + 2)
    client = load.Client(app.state.port)
    assert client.ask(b"nonsense\r\n\r\n")[0] == 400
    client.close()
    client = load.Client(app.state.port)
    client.socket.sendall(load.post(b"[1,2]"))
    client.socket.shutdown(socket.SHUT_WR)  # complete: it is answered
    assert client.answer()[0] == 200
    client.close()
    until(lambda: not app.state.server.server_state.connections)  # none is held open


def test_concurrent_requests_are_run_together(files, x):
    expected = direct(files / "blobs.onnx", x)
    with serving(files / "blobs.onnx", slow=True, batch=8, wait=4.0) as app, ThreadPoolExecutor(8) as pool:
        session = app.state.batcher.model.session
        session.go.set()
        for _ in range(3):
            found = list(pool.map(lambda i: ask(app, x[i].tolist()), range(8)))
            close([json.loads(text) for _, text in found], expected[:8])
        assert session.sizes == [8, 8, 8]  # each run began when there were eight
        session.go.clear()
        asked = [pool.submit(ask, app, x[:5].tolist())]
        until(lambda: app.state.batcher.waiting == 5)
        asked.append(pool.submit(ask, app, x[5:13].tolist()))
        until(lambda: len(session.sizes) == 4)  # thirteen are more than one run takes
        session.go.set()
        assert all(each.result()[0] == 200 for each in asked) and session.sizes[3:] == [5, 8]


def test_the_numbers_of_one_request_do_not_spoil_those_of_others(tmp_path):
    two_inputs(tmp_path / "two.onnx")
    with serving(tmp_path / "two.onnx", batch=4, wait=4.0) as app, ThreadPoolExecutor(4) as pool:
        places = [0, 2, 99, 1]
        found = list(pool.map(lambda i: ask(app, {"table": [[3, 5, 7]], "place": [[i]]}), places))
        assert [status for status, _ in found] == [200, 200, 422, 200]
        assert [json.loads(found[i][1])["epistemic"] for i in (0, 1, 3)] == [[3.0], [7.0], [5.0]]
        assert "does not take these numbers" in json.loads(found[2][1])["detail"]
        for body, why in {
            b'{"table": [[3, 5, 7]], "place": [[0.5]]}': "expected int64",
            b'{"table": [[3, 5, 7]], "place": [[0], [1]]}': "as many of each name",
            b"[[3, 5, 7]]": 'by name and nothing else: {"table": [...], "place": [...]}',
            load.npy(np.ones((1, 3), np.float32)): "by name",
        }.items():
            status, text = ask(app, body)
            assert status == 422 and why in json.loads(text)["detail"]


def test_too_many_requests_are_refused_and_the_accepted_ones_answered_before_it_stops(files, x):
    good = load.post(load.npy(x[:1]))
    with serving(files / "blobs.onnx", slow=True, batch=1, queue=2, requests=5, answer=8.0) as app:
        state, session = app.state, app.state.batcher.model.session
        clients = [load.Client(state.port) for _ in range(5)]
        for i, client in enumerate(clients[:3]):  # one in the network, two in the queue
            client.socket.sendall(good)
            until(lambda i=i: (len(session.sizes), state.batcher.waiting) == (1, i))
        status, text = clients[3].ask(good)
        assert status == 503 and b"2 inputs wait already" in text
        for client in clients[3:]:
            client.socket.sendall(good[:-3])  # being read
        time.sleep(0.1)
        status, text = ask(app, [1, 2])
        assert status == 503 and b"5 requests are open already" in text
        assert get(app, "/health") == (200, '{"status":"ok"}')
        state.server.should_exit = True
        until(lambda: not state.server.servers[0].is_serving())
        with pytest.raises(OSError):
            load.Client(state.port)
        session.go.set()
        until(lambda: not state.batcher.waiting)
        clients[3].socket.sendall(good[-3:])
        clients[4].socket.sendall(good[-3:])
        assert [client.answer()[0] for client in clients] == [200] * 5
        for client in clients:
            client.close()


def test_answers_that_take_too_long_are_refused(files):
    with serving(files / "blobs.onnx", slow=True, answer=0.2) as app:
        status, text = ask(app, [1, 2])
        assert status == 503 and b"no answer within 0.2 s" in text
        until(lambda: get(app, "/health")[0] == 503)
        app.state.batcher.model.session.go.set()
        until(lambda: get(app, "/health")[0] == 200)
        assert ask(app, [1, 2])[0] == 200


def test_clients_have_a_rate(files):
    rates = serve.Rates(4.0)
    assert [rates.allow("a") for _ in range(6)] == [True] * 4 + [False] * 2 and rates.allow("b")
    for i in range(serve.CLIENTS + 10):
        rates.allow(str(i))
    assert len(rates.free) == serve.CLIENTS
    with serving(files / "blobs.onnx", rate=0.01) as app:
        assert ask(app, [1, 2])[0] == 200
        status, text = ask(app, [1, 2])
        assert status == 429 and b"more than 0.01 requests per second" in text


SAMPLE = re.compile(r'([a-z_]+)(?:\{([a-z]+)="([^"]+)"\})? (\S+)')


def test_metrics_and_drift(files, x, tmp_path):
    state = tmp_path / "monitor.safetensors"
    state.write_bytes((files / "monitor.safetensors").read_bytes())
    with serving(files / "blobs.onnx", monitor=str(state)) as app:
        for i in range(40):
            ask(app, x[i].tolist())
        for body in (x[-3:].tolist(), [1], b"{"):
            ask(app, body)
        text = get(app, "/metrics")[1]
        found = {}
        for line in text.splitlines():
            if not line.startswith("# "):
                name, _, label, value = SAMPLE.fullmatch(line).groups()
                found[name.removeprefix("hidden_uncertainty_"), label] = float(value)
        kinds = dict(re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", text, re.MULTILINE))
        assert len(kinds) == text.count("# TYPE") == text.count("# HELP")
        assert [found["serve_requests_total", status] for status in ("200", "400", "422")] == [41, 1, 1]
        assert found["serve_inputs_total", None] == found["monitor_inputs_total", None] == 43
        surprising = sum(line["surprising"] for line in direct(files / "blobs.onnx", np.r_[x[:40], x[-3:]]))
        assert found["serve_surprising_total", None] == surprising
        steps = [value for (name, _), value in found.items() if name == "serve_batch_inputs_bucket"]
        assert steps == sorted(steps) and steps[0] == 40 and steps[-1] == found["serve_batch_inputs_count", None] == 41
        assert found["serve_batch_inputs_sum", None] == 43 and found["serve_waiting_inputs", None] == 0
        assert found["monitor_drifted", None] == 0
        ask(app, np.tile(x[-1], (30, 1)).tolist())
        assert "hidden_uncertainty_monitor_drifted 1" in get(app, "/metrics")[1]
        about = json.loads(get(app, "/")[1])
        assert about["inputs"] == {"x": {"type": "float32", "shape": [2]}} and about["task"]["name"] == "classification"
    assert Monitor.load(state).inputs == 73 and Monitor.load(state).drifted


def test_a_file_whose_inputs_cannot_be_stacked_is_refused(tmp_path):
    write(tmp_path / "a.onnx", [("Abs", ["x"], "epistemic", {})], {"x": (TensorProto.FLOAT, ["length"])}, {})
    with pytest.raises(SystemExit, match=r"input 'x' of .* whose first size is the number of inputs"):
        serve.create(str(tmp_path / "a.onnx"))


def test_the_load_test_finds_no_fault(files, x):
    found = load.measure(files / "blobs.onnx", x, 0.6, 3)
    assert found["lost"] == found["wrong"] == 0 and found["statuses"] == {"200": found["requests"]}
    assert set(found["refused"]) == {"malformed: 400", "of another shape: 422", "oversized: 413", "cut off: 400"}
    assert load.wrong({"epistemic": 1.001}, {"epistemic": 1.0}) and not load.wrong({"epistemic": 1.0}, {"epistemic": 1})
