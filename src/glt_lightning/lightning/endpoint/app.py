"""The endpoint over HTTP: who may ask, how much, and what is counted."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from glt_lightning.base import DeployOptions, OptionError, PeerLostError, RemoteError, __version__
from glt_lightning.lightning.endpoint.deploy import Endpoint
from glt_lightning.lightning.endpoint.page import openapi, page
from glt_lightning.lightning.endpoint.question import ARROW, JSON, QuestionError
from glt_lightning.lightning.endpoint.queue import Request as Work
from glt_lightning.lightning.endpoint.served_graph import AskedRows

try:
    import uvicorn
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route
except ModuleNotFoundError as error:
    raise OptionError(f"deploy: {error.name} is not installed. Run: pip install 'glt-lightning[deploy]'") from None

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_START_S, _END_S = 10.0, 5


class Metrics:
    """What `/metrics` tells, for Prometheus. It is the `Watcher` of an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("glt_requests", "Requests by status.", ["status"], registry=registry)
        self.seconds = Histogram("glt_request_seconds", "From request to answer.", buckets=_SECONDS, registry=registry)
        self._batch = Histogram("glt_batch_rows", "Rows computed together.", buckets=_ROWS, registry=registry)
        self._batch_requests = Histogram(
            "glt_batch_requests", "Requests computed together.", buckets=_ROWS, registry=registry
        )
        self._errors = Counter("glt_row_errors", "Rows that could not be answered.", registry=registry)
        self._read = Counter(
            "glt_rows_read", "Rows of attributes by the place they came from.", ["place"], registry=registry
        )
        waiting = Gauge("glt_waiting_requests", "Requests in work.", registry=registry)
        waiting.set_function(lambda: endpoint.queue.waiting)
        version = Gauge("glt_graph_version", "Version of the graph.", registry=registry)
        version.set_function(lambda: endpoint.graph.current.number)

    def sampled(self, rows: AskedRows) -> None:
        assert rows.asked is not None
        self._errors.inc(len(rows.errors))
        counters = rows.asked.sample.counters
        for place in ("local", "cached", "remote", "disk"):
            self._read.labels(place).inc(getattr(counters, f"{place}_rows"))

    def computed(self, batch: Sequence[Work]) -> None:
        self._batch_requests.observe(len(batch))
        self._batch.observe(sum(len(each.rows.rows) for each in batch if each.rows is not None))


def make_app(endpoint: Endpoint) -> Starlette:
    """Makes the ASGI application of an endpoint."""
    service = _Service(endpoint)
    routes = [
        Route("/predict", service.predict, methods=["POST"]),
        Route("/health", service.health),
        Route("/metrics", service.metrics),
        Route("/openapi.json", service.openapi),
        Route("/docs", service.page),
        Route("/", service.page),
    ]
    return Starlette(routes=routes)


class _Service:
    """The handlers of requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint, self._options = endpoint, endpoint.options
        self._key = endpoint.options.read_api_key()
        self._metrics = endpoint.watcher = Metrics(endpoint)

    async def predict(self, request: Request) -> Response:
        begin = time.perf_counter()
        response = await self._predicted(request)
        self._metrics.requests.labels(str(response.status_code)).inc()
        self._metrics.seconds.observe(time.perf_counter() - begin)
        return response

    async def _predicted(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        content_type = request.headers.get("content-type", JSON)
        try:
            async with asyncio.timeout(self._options.timeout_s):
                body = await self._body(request)
                answer = await asyncio.wrap_future(self._endpoint.submit(body, content_type))
        except QuestionError as error:
            return _error(error.status, str(error), field=error.field, row=error.row)
        except PeerLostError as error:  # too many requests, or a graph server that is away
            return _error(503, str(error), retry=True)
        except RemoteError as error:
            if error.kind != "SamplerError" or error.traceback:
                return _failed(error)
            return _error(503, str(error), retry=True)  # samplers of a graph server ended, as often as it tried
        except TimeoutError:
            return _error(
                503,
                f"no answer within {self._options.timeout_s:g} s (endpoint.timeout_s). Ask again later.",
                retry=True,
            )
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            return _failed(error)
        wanted = request.headers.get("accept", "")
        if ARROW in wanted or (ARROW in content_type and JSON not in wanted):
            return Response(answer.to_arrow(), media_type=ARROW)
        return Response(json.dumps(answer.to_json()), media_type=JSON)

    async def _body(self, request: Request) -> bytes:
        """Raises `QuestionError` for a body above the limit, before it is read."""
        most = self._options.body_bytes
        length = request.headers.get("content-length", "")
        too_large = QuestionError(f"the body has more than {most} bytes (endpoint.max_body).", "body", status=413)
        if length.isdecimal() and int(length) > most:
            raise too_large
        parts, size = [], 0
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > most:
                raise too_large
        return b"".join(parts)

    async def health(self, _: Request) -> Response:
        """For load balancers, which have no key."""
        if self._endpoint.queue.closed:
            return JSONResponse({"status": "stopping"}, status_code=503)
        return JSONResponse({"status": "ok", **self._endpoint.facts})

    async def metrics(self, request: Request) -> Response:
        refusal = self._refusal(request)
        return refusal or Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def openapi(self, request: Request) -> Response:
        return self._refusal(request) or JSONResponse(openapi(self._endpoint))

    async def page(self, request: Request) -> Response:
        return self._refusal(request) or HTMLResponse(page(openapi(self._endpoint)))

    def _refusal(self, request: Request) -> Response | None:
        """The answer to who does not send the key; None for others."""
        if self._key is None:
            return None
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")
        if hmac.compare_digest(given.encode(), self._key.encode()):
            return None
        return _error(401, "the key is missing or wrong. Send it as Authorization: Bearer KEY.")


def _failed(error: Exception) -> Response:
    """The answer to an error that the endpoint has logged."""
    return _error(500, f"the request failed: {type(error).__name__}: {str(error).partition(chr(10))[0]:.300}")


def _error(
    status: int, message: str, *, field: str | None = None, row: int | None = None, retry: bool = False
) -> Response:
    headers = {"retry-after": "1"} if retry else {}
    return JSONResponse(
        {"error": {"message": message, "field": field, "row": row}}, status_code=status, headers=headers
    )


# The server


class HttpListener:
    """Serves an endpoint by HTTP, in a thread of its own. It takes the port at once, and frees it after its ``with`` block."""

    def __init__(self, options: DeployOptions) -> None:
        self._options = options
        options.read_api_key()
        self._check_tls()
        self._socket = _bound(options)

    def _check_tls(self) -> None:
        if self._options.tls_cert is None:
            return
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self._options.tls_cert, self._options.tls_key
            )
        except (ssl.SSLError, OSError) as error:
            raise OptionError(f"endpoint.tls_cert, tls_key: cannot be used ({error}).") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @contextmanager
    def __call__(self, endpoint: Endpoint) -> Iterator[None]:
        config = uvicorn.Config(
            make_app(endpoint),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_END_S,
            ssl_certfile=self._options.tls_cert,
            ssl_keyfile=self._options.tls_key,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [self._socket]}, name="http", daemon=True)
        thread.start()
        try:
            _wait(lambda: server.started, thread)
            print(self._announcement(endpoint), flush=True)
            yield
        finally:
            server.should_exit = True
            thread.join(_END_S + _START_S)

    def _announcement(self, endpoint: Endpoint) -> str:
        host, port = self._socket.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        scheme = "http" if self._options.tls_cert is None else "https"
        facts = endpoint.facts
        return (
            f"endpoint: {scheme}://{address}/predict (see /docs); model {facts['model'][:8]}, graph {facts['graph'][:8]} "
            f"version {facts['version']}, glt_lightning {__version__}"
        )


def _wait(started: Callable[[], bool], thread: threading.Thread) -> None:
    until = time.monotonic() + _START_S
    while not started():
        if not thread.is_alive() or time.monotonic() > until:
            raise OptionError("deploy: the HTTP server did not start; the log says why.")
        time.sleep(0.01)


def _bound(options: DeployOptions) -> socket.socket:
    """Takes the port. Raises `OptionError` where that cannot be."""
    where = f"{options.host}:{options.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OptionError(f"endpoint.host: {options.host}: {error.strerror or error}.") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(1024)
    except OSError as error:
        found.close()
        raise OptionError(
            f"endpoint.port: {where}: {error.strerror}. Choose another one with --port; 0 is a free one."
        ) from None
    return found
