"""Load on `serve.py`, on this machine alone: does it lose an answer, give a wrong one, or grow?

    python load.py digits.onnx --seconds 60 --clients 8

A server is started at 127.0.0.1. Clients send one to four inputs at a time, half of them as JSON and half as .npy, and
compare every answer with what onnxruntime gives for the same inputs. Another one sends what is to be refused.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

HERE = Path(__file__).resolve().parent
CLOSE = 1e-5  # of a number, or of 1 where it is smaller
MOST = 4  # inputs per request


class Client:
    """One connection that stays open, without anything between the socket and us that would take time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a whole request and read its answer."""
        self.socket.sendall(request)
        return self.answer()

    def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        status, length = int(self.file.readline().split()[1]), 0
        while line := self.file.readline().strip().lower():
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return status, self.file.read(length)

    def close(self) -> None:
        """Close the connection."""
        self.file.close()
        self.socket.close()


def post(body: bytes, length: int | None = None) -> bytes:
    """A request for scores; its body may be shorter than it says."""
    size = len(body) if length is None else length
    return f"POST /score HTTP/1.1\r\nhost: here\r\ncontent-length: {size}\r\n\r\n".encode() + body


def npy(array: np.ndarray) -> bytes:
    """The bytes of a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def wrong(line: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether an answer differs from what is expected."""
    return line.keys() != expected.keys() or not all(
        np.allclose(np.asarray(line[name], float), expected[name], rtol=CLOSE, atol=CLOSE, equal_nan=True)
        for name in expected
    )


def plain_rate(session: Any, inputs: np.ndarray, batch: int, seconds: float) -> float:
    """Inputs per second of onnxruntime alone."""
    name, count, start = session.get_inputs()[0].name, 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        at = count % (len(inputs) - batch + 1)
        session.run(None, {name: inputs[at : at + batch]})
        count += batch
    return count / passed


def resident(process: int) -> float:
    """Memory of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def runs_of(port: int) -> np.ndarray:
    """How many inputs the network was run with so far, and how often, by the server's own count."""
    client = Client(port)
    text = client.ask(b"GET /metrics HTTP/1.1\r\nhost: here\r\n\r\n")[1].decode()
    client.close()
    return np.array([float(value) for value in re.findall(r"_batch_inputs_(?:sum|count) (\S+)", text)])


def polite(port: int, inputs: np.ndarray, known: list[dict[str, Any]], end: float, seed: int, found: Any) -> None:
    """Send good requests one after another, and compare what comes back."""
    draw, client = random.Random(seed), Client(port)
    while time.perf_counter() < end:
        count = draw.randint(1, MOST)
        at = draw.randint(0, len(inputs) - count)
        some = inputs[at : at + count]
        body = npy(some) if draw.random() < 0.5 else json.dumps(some.tolist()).encode()
        request, start = post(body), time.perf_counter()
        found["sent"] += 1
        try:
            status, text = client.ask(request)
        except OSError:
            found["lost"] += 1
            client = Client(port)
            continue
        found["seconds"].append(time.perf_counter() - start)
        found["status"][status] += 1
        found["inputs"] += count
        lines = [json.loads(line) for line in text.splitlines()] if status == 200 else []
        off = len(lines) != count or any(map(wrong, lines, known[at : at + count]))
        found["wrong"] += status == 200 and off
    client.close()


def rude(port: int, limit: int, end: float, found: Counter[str]) -> None:
    """Send what is to be refused, in turn."""
    bad = {"malformed": b"[1, 2", "of another shape": b"[[[[1]]]]", "oversized": b" " * (limit + 1)}
    while time.perf_counter() < end:
        for what, body in bad.items():
            client = Client(port)
            status, _ = client.ask(post(body))
            found[f"{what}: {status}"] += 1
            client.close()
        client = Client(port)
        client.socket.sendall(post(b"[1,", 1000))
        client.socket.shutdown(socket.SHUT_WR)
        found[f"cut off: {client.answer()[0]}"] += 1
        client.close()
        time.sleep(0.2)


def measure(path: Path, inputs: np.ndarray, seconds: float, clients: int, threads: int = 1) -> dict[str, Any]:
    """Start a server, load it, stop it, and tell what came of it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    given = {session.get_inputs()[0].name: inputs}
    values = dict(zip(names, session.run(names, given), strict=True))
    known = [{name: values[name][i].astype(float) for name in names} for i in range(len(inputs))]
    before = plain_rate(session, inputs, 1, min(5.0, seconds / 4))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    limit = 2 << 20
    command = [sys.executable, str(HERE / "serve.py"), str(path), f"--port={port}", f"--threads={threads}"]
    server = subprocess.Popen([*command, "--rate=0", f"--body={limit}"], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        while "running on" not in (line := server.stderr.readline()):
            if not line:
                raise SystemExit(f"the server did not start: {' '.join(command)}")
        drained = threading.Thread(target=server.stderr.read)
        drained.start()
        for _ in range(50):  # what is made at the first requests
            first = Client(port)
            _, answer = first.ask(post(npy(inputs[:MOST])))
            first.close()
        warm = runs_of(port)
        start = time.perf_counter()
        end, memory, busy = start + seconds, [resident(server.pid)], [os.getloadavg()[0]]
        found = [
            {"sent": 0, "lost": 0, "wrong": 0, "inputs": 0, "seconds": [], "status": Counter()} for _ in range(clients)
        ]
        refused: Counter[str] = Counter()
        work = [
            threading.Thread(target=polite, args=(port, inputs, known, end, seed, part))
            for seed, part in enumerate(found)
        ]
        work.append(threading.Thread(target=rude, args=(port, limit, end, refused)))
        for thread in work:
            thread.start()
        for _ in range(20):
            time.sleep(max(0.0, min(seconds / 20, end - time.perf_counter())))
            memory.append(resident(server.pid))
            busy.append(os.getloadavg()[0])
        for thread in work:
            thread.join()
        passed = time.perf_counter() - start
        total, count = runs_of(port) - warm
    finally:
        server.terminate()
        server.wait()
    drained.join()
    server.stderr.close()
    batch = float(total / count)
    after = plain_rate(session, inputs, max(1, round(batch)), min(5.0, seconds / 4))
    times = np.concatenate([part["seconds"] for part in found])
    rate = sum(part["inputs"] for part in found) / passed
    return {
        "model": path.stem,
        "answer": answer.decode().splitlines()[0],
        "seconds": passed,
        **{"clients": clients, "threads": threads, "requests": sum(part["sent"] for part in found)},
        **{name: sum(part[name] for part in found) for name in ("inputs", "lost", "wrong")},
        "statuses": {str(k): v for k, v in sorted(sum((part["status"] for part in found), Counter()).items())},
        "refused": dict(sorted(refused.items())),
        **{"requests_per_second": len(times) / passed, "inputs_per_second": rate, "inputs_per_run": batch},
        **{f"p{q}": float(np.percentile(times, q)) for q in (50, 99)},
        **{"plain_one_per_second": before, "plain_batch_per_second": after},
        **{"ratio_one": rate / before, "ratio_batch": rate / after},
        "load_average": busy,
        **{"memory_mb": memory, "first_mb": memory[0], "middle_mb": memory[10], "last_mb": memory[-1]},
    }


def main() -> None:
    """Print what was measured, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the file that export wrote, of a network with one input")
    parser.add_argument("--inputs", type=Path, help=".npy of inputs to send; random ones else")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="of the network")
    given = parser.parse_args()
    if given.inputs is not None:
        inputs = np.load(given.inputs, allow_pickle=False)
    else:
        (only,) = onnxruntime.InferenceSession(str(given.model)).get_inputs()
        inputs = np.random.default_rng(0).standard_normal((64, *only.shape[1:])).astype(np.float32)
    print(json.dumps(measure(given.model, inputs, given.seconds, given.clients, given.threads), indent=1))


if __name__ == "__main__":
    main()
