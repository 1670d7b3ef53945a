/** Client of the API: same origin, session cookie, errors as objects. */

import type { Page, StreamEvent } from "./types";

/** Unsuccessful response of the API. `status` is 0 if the server cannot be reached. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string | null = null,
    readonly param: string | null = null,
    readonly requestId: string | null = null,
    readonly retryAfterS: number | null = null,
  ) {
    super(message);
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>;

const NO_ANSWER = "The server cannot be reached. Check your network connection and whether the server runs.";

/** Listener for the status of each response; a 401 ends the session. */
let onStatus: (status: number) => void = () => {};
export function watchStatus(listener: (status: number) => void): void {
  onStatus = listener;
}

export function url(path: string, query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `/v1${path}${text && `?${text}`}`;
}

async function call(method: string, address: string, init: RequestInit = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(address, { method, credentials: "same-origin", ...init });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(0, NO_ANSWER);
  }
  onStatus(answer.status);
  if (!answer.ok) throw await errorOf(answer);
  return answer;
}

async function errorOf(answer: Response): Promise<ApiError> {
  const body: unknown = await answer.json().catch(() => null);
  const error = (body as { error?: { message?: string; code?: string; param?: string } } | null)?.error;
  const wait = Number(answer.headers.get("retry-after"));
  return new ApiError(
    answer.status,
    error?.message ?? `The server answered with status ${answer.status}.`,
    error?.code ?? null,
    error?.param ?? null,
    answer.headers.get("x-request-id"),
    wait > 0 ? wait : null,
  );
}

/** `signal` aborts a request whose result is no longer needed. */
export async function get<T>(path: string, query: Query = {}, signal: AbortSignal | null = null): Promise<T> {
  return (await call("GET", url(path, query), { signal })).json();
}

export async function getText(path: string, query: Query = {}): Promise<string> {
  return (await call("GET", url(path, query))).text();
}

/** Return one page of a list; the next page starts after its `last_id`. */
export async function page<T>(path: string, query: Query = {}, signal: AbortSignal | null = null): Promise<Page<T>> {
  return get(path, query, signal);
}

/** Return the pages of a list until they hold `max` entries. */
export async function all<T>(path: string, query: Query = {}, max = 10_000): Promise<T[]> {
  const found: T[] = [];
  let after: string | null = null;
  do {
    const next: Page<T> = await page<T>(path, { ...query, after });
    found.push(...next.data);
    after = next.has_more && next.data.length > 0 ? next.last_id : null;
  } while (after !== null && found.length < max);
  return found;
}

export async function post<T>(path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
  const json = body === undefined ? {} : { body: JSON.stringify(body) };
  const type: Record<string, string> = body === undefined ? {} : { "content-type": "application/json" };
  return (await call("POST", url(path), { ...json, headers: { ...type, ...headers } })).json();
}

/** Upload a form, such as a file for a job. */
export async function upload<T>(path: string, form: FormData): Promise<T> {
  return (await call("POST", url(path), { body: form })).json();
}

export async function remove<T>(path: string): Promise<T> {
  return (await call("DELETE", url(path))).json();
}

/** Send a chat request with `stream: true` and yield each chunk. */
export async function* chunks<T>(path: string, body: unknown, signal: AbortSignal | null = null): AsyncGenerator<T> {
  const headers = { "content-type": "application/json" };
  const answer = await call("POST", url(path), { body: JSON.stringify(body), headers, signal });
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    const lines = (rest + read.value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const data = line.startsWith("data: ") ? line.slice(6) : "";
      if (data && data !== "[DONE]") yield JSON.parse(data) as T;
    }
  }
}

export type Connection = "live" | "lost";
const FIRST_WAIT_MS = 1_000;
const MAX_WAIT_MS = 30_000;
/** A stream ends each minute and the browser reopens it after some seconds; this gap is not a lost connection. */
const GAP_MS = 5_000;

/**
 * Follow a job's state, events and step metrics until the returned function is called.
 *
 * The browser reconnects automatically and sends the last event's id. If the server refuses (too many streams, a
 * restart), the stream is opened again after a wait that doubles.
 */
export function stream(
  jobId: string,
  onEvent: (event: StreamEvent) => void,
  onConnection: (state: Connection) => void = () => {},
): () => void {
  let source: EventSource | null = null;
  let timer = 0;
  let waitMs = FIRST_WAIT_MS;
  let last = "";

  function receive(message: MessageEvent<string>): void {
    last = message.lastEventId || last;
    onEvent(JSON.parse(message.data) as StreamEvent);
  }

  function open(): void {
    timer = 0;
    source = new EventSource(url(`/fine_tuning/jobs/${encodeURIComponent(jobId)}/stream`, { after: last }));
    for (const type of ["job", "event", "metrics"]) source.addEventListener(type, receive);
    source.onopen = () => {
      window.clearTimeout(timer);
      timer = 0;
      waitMs = FIRST_WAIT_MS;
      onConnection("live");
    };
    source.onerror = () => {
      if (source?.readyState !== EventSource.CLOSED) {
        timer ||= window.setTimeout(() => onConnection("lost"), GAP_MS); // each retry of the browser raises another error
        return;
      }
      window.clearTimeout(timer);
      onConnection("lost");
      timer = window.setTimeout(open, waitMs);
      waitMs = Math.min(2 * waitMs, MAX_WAIT_MS);
    };
  }

  function close(): void {
    window.clearTimeout(timer);
    source?.close();
  }

  /** Close the stream, which would detect a lost network only much later. */
  function goneOffline(): void {
    close();
    onConnection("lost");
    timer = window.setTimeout(open, waitMs); // a server on this machine can still answer
  }

  function backOnline(): void {
    close();
    open();
  }

  open();
  window.addEventListener("offline", goneOffline);
  window.addEventListener("online", backOnline);
  return () => {
    window.removeEventListener("offline", goneOffline);
    window.removeEventListener("online", backOnline);
    close();
  };
}
