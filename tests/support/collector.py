"""A collector of OpenTelemetry: an HTTP server that takes traces in OTLP's protobuf form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True, slots=True)
class Received:
    """A span, its parent's id (empty for a root), the process that sent it, and the traces that it has links to."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    process: str
    attributes: Mapping[str, str]
    failed: bool
    links: Sequence[str]


class Collector:
    """`async with Collector() as collector`: takes traces at `collector.url`."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.headers: Mapping[str, str] = {}
        self.url = ""

    async def __aenter__(self) -> Collector:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1/traces"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.headers = request.headers  # their names are case-insensitive
        for resource in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            about = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {entry.key: entry.value for entry in span.attributes}
                    attributes = {key: value.string_value or str(value) for key, value in values.items()}
                    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                    failed = span.status.code == Status.STATUS_CODE_ERROR
                    links = [link.trace_id.hex() for link in span.links]
                    process = about["service.instance.id"]
                    self.spans.append(Received(span.name, *ids, process, attributes, failed, links))
        return web.Response()
