"""OpenTelemetry traces of rollouts. They are off unless the operator configures a collector.

The OpenTelemetry trace id of a rollout is the rollout's own trace id. Each process computes two facts from this id: the
id of the rollout's root span, and whether the rollout is selected for tracing. Processes therefore need not send each
other a trace context. Spans contain no text of rows, models or tools. Spans are exported from a bounded queue. While
the queue is full, new spans are dropped.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, TraceIdRatioBased
from opentelemetry.trace import INVALID_SPAN, Link, NonRecordingSpan, Span, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress
from agent_rft.spec.operator.operator_config import TraceSettings

QUEUE_SPANS, BATCH_SPANS = 4_096, 512
PERIOD_MS = 1_000
EXPORT_S = 5.0
"""Timeout of one export. If it expires, the spans of the export are dropped."""
FLUSH_S = 6.0
"""Timeout, in seconds, for sending the last spans of a process."""
LINKS = 64
LIMITS = SpanLimits(max_span_attributes=32, max_span_attribute_length=256, max_events=8, max_links=LINKS)
ERROR = "error.type"
_TRACE_ID = re.compile(r"trace_([0-9a-f]{32})")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_W3C = TraceContextTextMapPropagator()
_ROOT_TRACE_ID: ContextVar[int | None] = ContextVar("root", default=None)
"""Trace id that the id generator must use for the root span that is being created."""


class Tracer:
    """Tracer of one process. It traces the fraction `sampling_ratio` of all rollouts.

    Without a provider, it creates no spans.
    """

    def __init__(self, provider: TracerProvider | None = None, sampling_ratio: float = 0.0) -> None:
        self._provider = provider
        self._tracer = None if provider is None else provider.get_tracer("agent_rft")
        self._sampler = TraceIdRatioBased(sampling_ratio)

    def flush(self, within_s: float = FLUSH_S) -> bool:
        """Export all queued spans; return whether all of them were sent or dropped within `within_s` seconds.

        The limit is implemented here, because the SDK's `force_flush` ignores its timeout.
        """
        if self._provider is None:
            return True
        sending = threading.Thread(target=self._provider.force_flush, daemon=True, name="flush-traces")
        sending.start()
        sending.join(within_s)
        return not sending.is_alive()

    def find_sampled_id(self, trace_id: str) -> str:
        """Return the id of a rollout's trace in OpenTelemetry's format; empty if the rollout is not sampled."""
        number = _parse_trace_id(trace_id)
        if number is None or self._sampler.should_sample(None, number, "").decision is Decision.DROP:
            return ""
        return f"{number:032x}"

    @contextmanager
    def rollout_span(self, trace_id: str, name: str, **attributes: AttributeValue) -> Iterator[Span]:
        """Context manager that creates the root span of a rollout and makes it the current span.

        In the names of `attributes`, `__` stands for a dot.
        """
        number = _parse_trace_id(trace_id)
        if self._tracer is None or number is None:
            yield INVALID_SPAN
            return
        token = _ROOT_TRACE_ID.set(number)
        try:
            span = self._tracer.start_span(name, Context(), attributes=_restore_dots(attributes))
        finally:
            _ROOT_TRACE_ID.reset(token)
        with _use_span(span):
            yield span

    @contextmanager
    def span(self, trace_id: str, name: str, **attributes: AttributeValue) -> Iterator[Span]:
        """Context manager that creates a child span of a rollout's root span, which may be in another process."""
        number = _parse_trace_id(trace_id)
        if self._tracer is None or number is None:
            yield INVALID_SPAN
            return
        parent = NonRecordingSpan(SpanContext(number, _compute_root_span_id(number), is_remote=True))
        below = trace.set_span_in_context(parent, Context())
        with _use_span(self._tracer.start_span(name, below, attributes=_restore_dots(attributes))) as span:
            yield span

    def record_span(
        self,
        name: str,
        began: float,
        ended: float,
        rollouts: Sequence[str] = (),
        parent_span: Span | None = None,
        error: str | None = None,
        **attributes: AttributeValue,
    ) -> Span:
        """Record a span of past work between two Unix times, with links to rollouts.

        `rollouts` are the trace ids of the linked rollouts. `error` is the type of the error that ended the work.
        """
        if self._tracer is None:
            return INVALID_SPAN
        numbers = [number for trace_id in rollouts[:LINKS] if (number := _parse_trace_id(trace_id)) is not None]
        links = [Link(SpanContext(n, _compute_root_span_id(n), is_remote=True, trace_flags=_SAMPLED)) for n in numbers]
        parent = Context() if parent_span is None else trace.set_span_in_context(parent_span, Context())
        span = self._tracer.start_span(
            name, parent, attributes=_restore_dots(attributes), links=links, start_time=int(began * 1e9)
        )
        if error is not None:
            mark_failed(span, error)
        span.end(int(ended * 1e9))
        return span


NO_TRACES = Tracer()


def create_tracer(
    settings: TraceSettings | None,
    process: str,
    metrics: MetricsAddress | None = None,
    exporter: SpanExporter | None = None,
    *,
    export_all: bool = False,
) -> Tracer:
    """Create the tracer of the process named `process`; without settings, return NO_TRACES.

    The job's name is read from `metrics`. `exporter` replaces the default exporter, which sends spans to the collector.
    `export_all` turns sampling off, for a process whose spans do not belong to rollouts.
    """
    if settings is None:
        return NO_TRACES
    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        headers = {name.lower(): value.get_secret_value() for name, value in settings.headers.items()}
        exporter = OTLPSpanExporter(settings.endpoint, headers=headers, timeout=EXPORT_S)
    about = {"service.name": "agent-rft", "service.instance.id": process}
    if metrics is not None:
        about["agent_rft.job"] = metrics.job
    provider = TracerProvider(
        ALWAYS_ON if export_all else TraceIdRatioBased(settings.sampling_ratio),
        Resource(about),
        shutdown_on_exit=False,  # it would wait for the collector without the limit of `flush`
        id_generator=_RolloutIdGenerator(),
        span_limits=LIMITS,
    )
    provider.add_span_processor(
        BatchSpanProcessor(exporter, QUEUE_SPANS, PERIOD_MS, BATCH_SPANS, export_timeout_millis=1000 * EXPORT_S)
    )
    return Tracer(provider, settings.sampling_ratio)


def current_trace_headers() -> dict[str, str]:
    """Return the W3C trace context headers of the current span; empty without traces."""
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return headers


def current_trace_id() -> str:
    """Return the trace id of the current span without the prefix `trace_`; empty if the span is not sampled."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.trace_flags.sampled else ""


def mark_failed(span: Span, kind: str) -> None:
    """Mark a span as failed with an error of type `kind`."""
    span.set_status(Status(StatusCode.ERROR))
    span.set_attribute(ERROR, kind)


class _RolloutIdGenerator(RandomIdGenerator):
    """Generator of random trace ids and span ids.

    The root span of a rollout does not get random ids. It gets the rollout's trace id, and its span id is computed from
    this trace id.
    """

    def generate_trace_id(self) -> int:
        root = _ROOT_TRACE_ID.get()
        return super().generate_trace_id() if root is None else root

    def generate_span_id(self) -> int:
        root = _ROOT_TRACE_ID.get()
        return super().generate_span_id() if root is None else _compute_root_span_id(root)


@contextmanager
def _use_span(span: Span) -> Iterator[Span]:
    """Context manager that makes `span` the current span, and ends the span on exit.

    Only the type of an error is recorded, since its message may contain text from rows, models or tools.
    """
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except BaseException as error:
            mark_failed(span, type(error).__name__)
            raise


def _parse_trace_id(trace_id: str) -> int | None:
    """Return a trace id as a number; None if agent-rft did not create the id."""
    found = _TRACE_ID.fullmatch(trace_id)
    return (int(found[1], 16) or None) if found else None


def _compute_root_span_id(trace_id: int) -> int:
    return trace_id >> 64 or 1


def _restore_dots(attributes: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {name.replace("__", "."): value for name, value in attributes.items()}
