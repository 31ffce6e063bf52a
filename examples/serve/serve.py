"""Serve a file that `hidden_uncertainty.export` wrote: one line of JSON per input, with its uncertainty.

    pip install numpy onnxruntime fastapi uvicorn
    python serve.py digits.onnx --port 8000
    curl 127.0.0.1:8000/score --data-binary @image.npy

Copy this file: it needs neither torch nor hidden_uncertainty. With `--monitor state.safetensors`, which needs both, the
scores also go to a `Monitor`, and `/metrics` tells whether the stream has drifted.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import math
import time
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import Any

import h11
import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger("uvicorn.error")
TYPES = {"float": "float32", "double": "float64"} | {
    name: name for name in ("float16", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
CLIENTS = 10_000  # whose rates are remembered
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # steps of the histogram of times
DRIFT = 256  # inputs that the monitor takes at once
Arrays = dict[str, np.ndarray]


def option(default: float, text: str) -> Any:
    """A field of `Limits`, with what `--help` says about it."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Limits:
    """What the service takes at most."""

    batch: int = option(32, "inputs per run of the network, and per request")
    wait: float = option(0.002, "seconds that a request waits for others to be run with")
    queue: int = option(256, "inputs that wait for their turn")
    requests: int = option(128, "requests that are read or answered at once")
    connections: int = option(512, "open connections")
    body: int = option(2 << 20, "bytes of a request's body")
    rate: float = option(100.0, "requests per second and client address; 0 for any")
    read: float = option(5.0, "seconds until a request's head, and then its body, must be here")
    answer: float = option(5.0, "seconds until an answer must be there")


def refusal(status: int, why: str) -> HTTPException:
    """What a client is told when it gets no scores."""
    return HTTPException(status, why, headers={"Retry-After": "1"} if status in (429, 503) else None)


class Model:
    """The file in a session: what it takes, and what it gives."""

    def __init__(self, path: str, threads: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        for each in self.session.get_inputs():
            kind = TYPES.get(each.type.removeprefix("tensor(").removesuffix(")"))
            first, *shape = each.shape or [1]
            if kind is None or isinstance(first, int) or not all(isinstance(size, int) for size in shape):
                raise SystemExit(
                    f"input {each.name!r} of {path} is {each.type} {each.shape}: expected numbers whose first size is "
                    "the number of inputs and whose other sizes are known, as hidden_uncertainty.export writes them."
                )
            self.inputs[each.name] = np.dtype(kind), tuple(shape)
        self.ranks = {each.name: len(each.shape) for each in self.session.get_outputs()}
        self.outputs = list(self.ranks)
        known = self.session.get_modelmeta().custom_metadata_map
        self.about = {
            "inputs": {name: {"type": str(kind), "shape": shape} for name, (kind, shape) in self.inputs.items()},
            "outputs": self.outputs,
            **{name.removeprefix("hidden_uncertainty."): _plain(known[name]) for name in sorted(known)},
        }

    def read(self, body: bytes, most: int) -> tuple[Arrays, int]:
        """The inputs in a body, as the network takes them, and how many there are."""
        given: Any = None
        if not body.startswith(np.lib.format.MAGIC_PREFIX):
            try:
                given = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise refusal(400, f"the body is neither JSON nor .npy: {error}.") from error
        elif len(self.inputs) == 1:
            given = _read_npy(body)
        if not isinstance(given, dict) and len(self.inputs) == 1:
            given = dict.fromkeys(self.inputs, given)
        if not isinstance(given, dict) or given.keys() != self.inputs.keys():
            form = ", ".join(f'"{name}": [...]' for name in self.inputs)
            raise refusal(422, f"expected JSON with all inputs of the network by name and nothing else: {{{form}}}.")
        arrays = {name: self._fitting(name, value) for name, value in given.items()}
        counts = {name: len(array) for name, array in arrays.items()}
        count = max(counts.values())
        if count > most:
            raise refusal(413, f"{count} inputs came in one request: send at most {most}.")
        if count == 0 or min(counts.values()) != count:
            raise refusal(422, f"expected at least one input, and as many of each name; there are {counts}.")
        return arrays, count

    def _fitting(self, name: str, value: Any) -> np.ndarray:
        """One of the network's inputs, with the number of inputs as its first size."""
        kind, shape = self.inputs[name]
        expected = f"{name!r}: expected {kind} numbers of shape {shape} per input"
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError) as error:
            raise refusal(422, f"{expected}; the lists do not all have the same length.") from error
        if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, kind, "same_kind"):
            what = array.dtype.name if array.dtype.kind in "biuf" else "text, null or integers of many digits"
            raise refusal(422, f"{expected}; got {what}.")
        if array.shape == shape:
            array = array[None]
        if array.shape[1:] != shape or array.ndim == 0:
            raise refusal(422, f"{expected}, alone or stacked; got shape {array.shape}.")
        with np.errstate(over="ignore"):
            made = array.astype(kind)
        same = np.isfinite(made) == np.isfinite(array) if kind.kind == "f" else made == array
        if not same.all():
            raise refusal(422, f"{expected}; some numbers are too large for {kind}.")
        return made

    def run(self, parts: list[Arrays]) -> list[Arrays]:
        """Run the network once for the inputs of several requests, and give each its own part."""
        joined = {name: np.concatenate([part[name] for part in parts]) for name in self.inputs}
        found = self.session.run(self.outputs, joined)
        ends = np.cumsum([len(next(iter(part.values()))) for part in parts])[:-1]
        split = [np.split(values, ends) for values in found]
        return [dict(zip(self.outputs, values, strict=True)) for values in zip(*split, strict=True)]


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read_npy(body: bytes) -> np.ndarray:
    """A file of numpy: its header is read, and its size compared, before anything is made of it."""
    file, formats = io.BytesIO(body), np.lib.format
    try:
        version = formats.read_magic(file)
        read = {(1, 0): formats.read_array_header_1_0, (2, 0): formats.read_array_header_2_0}[version]
        shape, _, kind = read(file)
    except Exception as error:  # whatever a header may hold
        raise refusal(400, "the header of the .npy cannot be read: write it with numpy.save.") from error
    if kind.kind not in "biuf" or min(shape, default=0) < 0:
        raise refusal(422, f"the .npy holds {kind} of shape {shape}: expected numbers.")
    size, left = math.prod(shape) * kind.itemsize, len(body) - file.tell()
    if size != left:
        raise refusal(400, f"the .npy has {left} bytes of numbers, its header says {size}: is it cut short?")
    file.seek(0)
    try:
        return np.load(file, allow_pickle=False)
    except (OverflowError, TypeError, ValueError) as error:
        raise refusal(400, f"the .npy holds numbers of shape {shape}, which no array has.") from error


def lines(found: Mapping[str, np.ndarray]) -> str:
    """One line of JSON per input; infinity and NaN are null."""
    columns = {}
    for name, values in found.items():
        known = np.isfinite(values)
        columns[name] = values.tolist() if known.all() else np.where(known, values, None).tolist()
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True)), allow_nan=False) + "\n" for row in rows)


class Metrics:
    """What `/metrics` shows."""

    def __init__(self, limits: Limits) -> None:
        self.requests: Counter[int] = Counter()
        self.inputs = self.surprising = 0
        sizes = [2.0**i for i in range(max(1, limits.batch).bit_length())]
        self.steps = {"request_seconds": list(SECONDS), "batch_inputs": sizes}
        self.counts = {name: [0] * (len(steps) + 1) for name, steps in self.steps.items()}
        self.sums = dict.fromkeys(self.steps, 0.0)

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        self.counts[name][bisect_left(self.steps[name], value)] += 1
        self.sums[name] += value

    def text(self, waiting: int) -> str:
        """All of it, as Prometheus reads it."""
        found: list[str] = []

        def add(name: str, kind: str, text: str, values: Mapping[str, float]) -> None:
            name = f"hidden_uncertainty_serve_{name}"
            found.extend([f"# HELP {name} {text}", f"# TYPE {name} {kind}"])
            found.extend(f"{name}{label} {value:.10g}" for label, value in values.items())

        statuses = {f'{{status="{status}"}}': count for status, count in sorted(self.requests.items())}
        add("requests_total", "counter", "Requests for scores, by what they were answered with.", statuses)
        add("inputs_total", "counter", "Inputs scored.", {"": self.inputs})
        add("surprising_total", "counter", "Inputs above the threshold.", {"": self.surprising})
        add("waiting_inputs", "gauge", "Inputs that wait for their turn.", {"": waiting})
        helps = {"request_seconds": "Time of answered requests.", "batch_inputs": "Inputs per run of the network."}
        for name, text in helps.items():
            ends, total, values = [*map(str, self.steps[name]), "+Inf"], 0, {}
            for end, count in zip(ends, self.counts[name], strict=True):
                total += count
                values[f'_bucket{{le="{end}"}}'] = total
            add(name, "histogram", text, values | {"_sum": self.sums[name], "_count": total})
        return "\n".join(found) + "\n"


class Rates:
    """How many requests each client may send: `rate` per second, and as many at once."""

    def __init__(self, rate: float) -> None:
        self.rate, self.free = rate, OrderedDict[str, float]()  # when all that a client has sent is made up for

    def allow(self, client: str) -> bool:
        """Whether this client may send one more now."""
        now = time.monotonic()
        free = max(self.free.pop(client, now), now)
        allowed = not self.rate or (free - now) * self.rate <= max(self.rate, 1.0) - 1
        self.free[client] = free + 1 / self.rate if self.rate and allowed else free
        if len(self.free) > CLIENTS:
            self.free.popitem(last=False)
        return allowed


@dataclass
class Job:
    """The inputs of one request, and who waits for their scores."""

    given: Arrays
    count: int
    answer: asyncio.Future[Arrays]


class Batcher:
    """Runs the inputs of concurrent requests together, in one thread."""

    def __init__(self, model: Model, limits: Limits, metrics: Metrics, monitor: Any = None) -> None:
        self.model, self.limits, self.metrics, self.monitor = model, limits, metrics, monitor
        self.jobs: deque[Job] = deque()
        self.arrived, self.stopping = asyncio.Event(), False
        self.waiting, self.began = 0, math.inf  # inputs; when the network began the run that it is in
        self.thread = ThreadPoolExecutor(1, "network")
        self.scores: list[np.ndarray] = []  # that the monitor has not taken yet

    async def ask(self, given: Arrays, count: int) -> Arrays:
        """What the network gives for these inputs."""
        if self.waiting + count > self.limits.queue:
            raise refusal(503, f"{self.waiting} inputs wait already: try again later.")
        job = Job(given, count, asyncio.get_running_loop().create_future())
        self.jobs.append(job)
        self.waiting += count
        self.arrived.set()
        try:
            async with asyncio.timeout(self.limits.answer):
                return await job.answer
        except TimeoutError as error:
            raise refusal(503, f"there was no answer within {self.limits.answer:g} s: try again later.") from error

    async def work(self) -> None:
        """Go on until `stopping`, and then until nothing waits."""
        while self.jobs or not self.stopping:
            if not self.jobs:
                await self._next()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self.limits.wait):
                    while self.waiting < self.limits.batch and not self.stopping:
                        await self._next()
            taken, count = [], 0
            while self.jobs and count + self.jobs[0].count <= self.limits.batch:
                job = self.jobs.popleft()
                self.waiting -= job.count
                if not job.answer.done():  # else nobody waits for it any more
                    taken.append(job)
                    count += job.count
            if taken:
                await self._answer(taken)
                if sum(map(len, self.scores)) >= DRIFT:
                    await self.watch()

    async def _next(self) -> None:
        self.arrived.clear()
        await self.arrived.wait()

    async def _answer(self, jobs: list[Job]) -> None:
        self.began = time.monotonic()
        try:
            work = asyncio.get_running_loop().run_in_executor
            parts = await work(self.thread, self.model.run, [job.given for job in jobs])
        except Exception as error:
            if len(jobs) > 1:  # one request's numbers are no reason to refuse the others
                for job in jobs:
                    await self._answer([job])
                return
            logger.warning("the network failed: %s", error)
            refused = type(error).__name__ in ("InvalidArgument", "Fail")  # onnxruntime's, for what nodes do not take
            why = "the network does not take these numbers, such as an index out of range." if refused else "it failed."
            if not jobs[0].answer.done():
                jobs[0].answer.set_exception(refusal(422 if refused else 500, why))
            return
        finally:
            self.began = math.inf
        self.metrics.observe("batch_inputs", sum(job.count for job in jobs))
        for job, part in zip(jobs, parts, strict=True):
            self.metrics.inputs += job.count
            self.metrics.surprising += int(part["surprising"].sum()) if "surprising" in part else 0
            if self.monitor is not None:
                self.scores.append(part["epistemic"])
            if not job.answer.done():
                job.answer.set_result(part)

    async def watch(self) -> None:
        """Hand the scores so far to the monitor, in the order in which they came."""
        if self.monitor is not None and self.scores:
            scores, self.scores = np.concatenate(self.scores), []
            try:
                await asyncio.get_running_loop().run_in_executor(self.thread, self.monitor.update, scores)
            except Exception:  # answers matter more
                logger.exception("the monitor failed")

    @property
    def stuck(self) -> bool:
        """Whether one run takes longer than any answer may."""
        return time.monotonic() - self.began > self.limits.answer


def create(path: str, limits: Limits | None = None, *, monitor: str | None = None, threads: int = 0) -> FastAPI:
    """The service of a file; with `monitor`, a state that `Monitor.save` wrote, which is written again at the end."""
    limits = limits or Limits()
    model, metrics, rates = Model(path, threads), Metrics(limits), Rates(limits.rate)
    watcher = None
    if monitor is not None:
        from hidden_uncertainty import Monitor

        watcher = Monitor.load(monitor)
        if model.ranks["epistemic"] != 1:
            raise SystemExit(f"a monitor takes one score per input; {path} gives maps.")
    batcher = Batcher(model, limits, metrics, watcher)
    active = 0

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        work = app.state.work = asyncio.create_task(batcher.work())
        try:
            yield
        finally:
            batcher.stopping = True
            batcher.arrived.set()
            await work
            await batcher.watch()
            batcher.thread.shutdown()
            if watcher is not None:
                watcher.save(monitor)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.batcher, app.state.metrics, app.state.limits = batcher, metrics, limits

    async def body_of(request: Request) -> bytes:
        too_large = f"the body has more than {limits.body:,} bytes, which is all that is taken."
        if int(request.headers.get("content-length", 0)) > limits.body:
            raise refusal(413, too_large)
        body = bytearray()
        try:
            async with asyncio.timeout(limits.read):
                async for part in request.stream():
                    body += part
                    if len(body) > limits.body:
                        raise refusal(413, too_large)
        except TimeoutError as error:
            raise refusal(408, f"the body was not here within {limits.read:g} s: {len(body)} bytes came.") from error
        return bytes(body)

    async def answer(request: Request) -> Response:
        nonlocal active
        if not rates.allow(request.client.host if request.client else ""):
            raise refusal(429, f"more than {limits.rate:g} requests per second came from your address.")
        if active >= limits.requests:
            raise refusal(503, f"{active} requests are open already: try again later.")
        active += 1
        try:
            given, count = model.read(await body_of(request), limits.batch)
            found = await batcher.ask(given, count)
        finally:
            active -= 1
        return Response(lines(found), media_type="application/json" if count == 1 else "application/x-ndjson")

    @app.post("/score")
    async def score(request: Request) -> Response:
        start, status = time.perf_counter(), 500
        try:
            response = await answer(request)
            status = response.status_code
            metrics.observe("request_seconds", time.perf_counter() - start)
            return response
        except HTTPException as error:
            status = error.status_code
            raise
        except ClientDisconnect:  # nobody reads this any more
            status = 400
            return Response("the body was cut off", status)
        finally:
            metrics.requests[status] += 1

    @app.get("/")
    async def about() -> dict[str, Any]:
        return model.about

    @app.get("/health")
    async def health() -> dict[str, str]:
        if batcher.stuck or app.state.work.done():
            raise refusal(503, "the network does not answer.")
        return {"status": "ok"}

    @app.get("/metrics")
    async def show() -> Response:
        await batcher.watch()
        text = metrics.text(batcher.waiting) + (watcher.metrics() if watcher is not None else "")
        return Response(text, media_type="text/plain; version=0.0.4")

    return app


def connection_of(app: FastAPI) -> type[H11Protocol]:
    """Uvicorn's connections, which in addition close when a request is slow, and say so when it is cut off."""
    limits, metrics = app.state.limits, app.state.metrics

    class Connection(H11Protocol):
        timer: asyncio.TimerHandle | None = None
        ended = False  # the client has nothing more to say, but may still read

        @property
        def active(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def set_timer(self, seconds: float | None) -> None:
            if self.timer is not None:
                self.timer.cancel()
            self.timer = None if seconds is None else self.loop.call_later(seconds, self.late)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.set_timer(limits.read)

        def connection_lost(self, exc: Exception | None) -> None:
            self.set_timer(None)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            if self.timer is None:
                self.set_timer(limits.read)
            super().data_received(data)
            if self.cycle is not before and self.active:  # a request's head is complete
                self.set_timer(2 * limits.read + limits.answer)

        def on_response_complete(self) -> None:
            self.set_timer(None)
            super().on_response_complete()
            if self.ended and not self.active:
                self.transport.close()
            elif self.active:  # the next request was here already
                self.set_timer(2 * limits.read + limits.answer)

        def eof_received(self) -> bool | None:  # type: ignore[override]
            if self.active and self.cycle.more_body and not self.cycle.response_started:
                self.refuse(400, "the request ended before its body did.")
                return None
            self.ended = True
            return self.active  # False closes the connection

        def late(self) -> None:
            if self.active:  # it does not read its answer
                self.transport.abort()
            elif self.conn.their_state is h11.IDLE:
                metrics.requests[408] += 1
                self.refuse(408, f"no request was here within {limits.read:g} s.")
            else:  # the rest of a request that was refused
                self.transport.close()

        def refuse(self, status: int, why: str) -> None:
            body = json.dumps({"detail": why}).encode()
            head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
            self.transport.close()

    return Connection


def server_of(app: FastAPI, host: str = "127.0.0.1", port: int = 8000) -> uvicorn.Server:
    """A server that, when it is told to stop, answers what it has accepted first."""
    limits: Limits = app.state.limits
    config = uvicorn.Config(
        app,
        host,
        port,
        http=connection_of(app),
        ws="none",
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=math.ceil(2 * limits.read + limits.answer),
        access_log=False,
        proxy_headers=False,  # a client could name any address there
        server_header=False,
    )
    return uvicorn.Server(config)


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("model", help="the file that export wrote")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at")
    parser.add_argument("--port", type=int, default=8000, help="port to listen at")
    parser.add_argument("--threads", type=int, default=0, help="threads of the network; 0 for one per core")
    parser.add_argument("--monitor", help="file that Monitor.save wrote, to watch for drift")
    for each in fields(Limits):
        parser.add_argument(f"--{each.name}", type=type(each.default), default=each.default, **each.metadata)
    given = vars(parser.parse_args())
    limits = Limits(**{each.name: given[each.name] for each in fields(Limits)})
    app = create(given["model"], limits, monitor=given["monitor"], threads=given["threads"])
    server_of(app, given["host"], given["port"]).run()


if __name__ == "__main__":
    main()
