"""Traces of rollouts in OpenTelemetry's form; none unless the operator names a collector.

A rollout's trace id is also OpenTelemetry's, and the id of its root span follows from it. So each process knows by
itself whether a rollout is sampled and below which span its own spans are: nothing is passed on between processes.
Spans have no texts of rows, models or tools. They wait in a bounded queue, and are dropped while it is full.
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
from agent_rft.spec.operator.config import TraceSettings

QUEUE_SPANS, BATCH_SPANS = 4_096, 512
PERIOD_MS = 1_000
EXPORT_S = 5.0
"""How long one export may take; then its spans are dropped."""
FLUSH_S = 6.0
"""How long the end of a process waits for its last spans: for one export that fails, and what else is sent quickly."""
LINKS = 64
LIMITS = SpanLimits(max_span_attributes=32, max_span_attribute_length=256, max_events=8, max_links=LINKS)
ERROR = "error.type"
_TRACE_ID = re.compile(r"trace_([0-9a-f]{32})")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_W3C = TraceContextTextMapPropagator()
_ROOT: ContextVar[int | None] = ContextVar("root", default=None)
"""The trace id of the root span that is being made."""


class Tracer:
    """Makes the spans of one process; without a provider there are none. Of rollouts, `share` is traced."""

    def __init__(self, provider: TracerProvider | None = None, share: float = 0.0) -> None:
        self._provider = provider
        self._tracer = None if provider is None else provider.get_tracer("agent_rft")
        self._sampler = TraceIdRatioBased(share)

    def flush(self, within_s: float = FLUSH_S) -> bool:
        """Send what waits, for some seconds at most: the SDK sends batch after batch, and ignores a timeout.

        Returns whether all was sent, or dropped.
        """
        if self._provider is None:
            return True
        sending = threading.Thread(target=self._provider.force_flush, daemon=True, name="flush-traces")
        sending.start()
        sending.join(within_s)
        return not sending.is_alive()

    def sampled(self, trace_id: str) -> str:
        """The id of a rollout's trace, as OpenTelemetry writes it; empty if it is not sampled."""
        number = _number(trace_id)
        if number is None or self._sampler.should_sample(None, number, "").decision is Decision.DROP:
            return ""
        return f"{number:032x}"

    @contextmanager
    def rollout(self, trace_id: str, name: str, **attributes: AttributeValue) -> Iterator[Span]:
        """The root span of a rollout, as the current one; names of attributes have `__` for a dot."""
        number = _number(trace_id)
        if self._tracer is None or number is None:
            yield INVALID_SPAN
            return
        token = _ROOT.set(number)
        try:
            span = self._tracer.start_span(name, Context(), attributes=_dotted(attributes))
        finally:
            _ROOT.reset(token)
        with _current(span):
            yield span

    @contextmanager
    def span(self, trace_id: str, name: str, **attributes: AttributeValue) -> Iterator[Span]:
        """A span below the root span of the rollout, in whatever process that is."""
        number = _number(trace_id)
        if self._tracer is None or number is None:
            yield INVALID_SPAN
            return
        parent = NonRecordingSpan(SpanContext(number, _root_span(number), is_remote=True))
        below = trace.set_span_in_context(parent, Context())
        with _current(self._tracer.start_span(name, below, attributes=_dotted(attributes))) as span:
            yield span

    def past(
        self,
        name: str,
        began: float,
        ended: float,
        rollouts: Sequence[str] = (),
        below: Span | None = None,
        error: str | None = None,
        **attributes: AttributeValue,
    ) -> Span:
        """A span of what is over, between two Unix times, with links to the rollouts of these trace ids.

        `error` is the type of the error that ended it.
        """
        if self._tracer is None:
            return INVALID_SPAN
        numbers = [number for trace_id in rollouts[:LINKS] if (number := _number(trace_id)) is not None]
        links = [Link(SpanContext(n, _root_span(n), is_remote=True, trace_flags=_SAMPLED)) for n in numbers]
        parent = Context() if below is None else trace.set_span_in_context(below, Context())
        span = self._tracer.start_span(
            name, parent, attributes=_dotted(attributes), links=links, start_time=int(began * 1e9)
        )
        if error is not None:
            failed(span, error)
        span.end(int(ended * 1e9))
        return span


NO_TRACES = Tracer()


def tracer_of(
    settings: TraceSettings | None,
    process: str,
    metrics: MetricsAddress | None = None,
    exporter: SpanExporter | None = None,
    *,
    every: bool = False,
) -> Tracer:
    """The tracer of the process of this name; `metrics` knows its job, and `exporter` replaces the collector's.

    With `every` the process, which makes no spans of rollouts, sends all of its own.
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
        ALWAYS_ON if every else TraceIdRatioBased(settings.share),
        Resource(about),
        shutdown_on_exit=False,  # it would wait for the collector; `flush` has a bound
        id_generator=_Ids(),
        span_limits=LIMITS,
    )
    provider.add_span_processor(
        BatchSpanProcessor(exporter, QUEUE_SPANS, PERIOD_MS, BATCH_SPANS, export_timeout_millis=1000 * EXPORT_S)
    )
    return Tracer(provider, settings.share)


def traceparent() -> dict[str, str]:
    """The W3C headers of the current span; none without traces."""
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return headers


def sampled_trace() -> str:
    """The trace id of the current span, without `trace_`; empty if it is not sampled."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.trace_flags.sampled else ""


def failed(span: Span, kind: str) -> None:
    """Mark a span as failed."""
    span.set_status(Status(StatusCode.ERROR))
    span.set_attribute(ERROR, kind)


class _Ids(RandomIdGenerator):
    """Random ids, except for those of a rollout's root span."""

    def generate_trace_id(self) -> int:
        root = _ROOT.get()
        return super().generate_trace_id() if root is None else root

    def generate_span_id(self) -> int:
        root = _ROOT.get()
        return super().generate_span_id() if root is None else _root_span(root)


@contextmanager
def _current(span: Span) -> Iterator[Span]:
    """Make it the current span, and end it; an error shows by its type only, since its message may hold texts."""
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except BaseException as error:
            failed(span, type(error).__name__)
            raise


def _number(trace_id: str) -> int | None:
    """The id as a number; None if it is not one of ours, as one that a client of the API chose."""
    found = _TRACE_ID.fullmatch(trace_id)
    return (int(found[1], 16) or None) if found else None


def _root_span(trace_id: int) -> int:
    return trace_id >> 64 or 1


def _dotted(attributes: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {name.replace("__", "."): value for name, value in attributes.items()}
