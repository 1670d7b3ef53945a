/** Data of one job, loaded once and then updated by its stream. */

import { ApiError, all, get, page, stream, type Connection } from "../../lib/api";
import { printable } from "../../lib/format";
import type { Checkpoint, Job, JobEvent, JobMetrics, JobProgress, JobStatus, Page, StreamEvent } from "../../lib/types";

export const ENDED: readonly JobStatus[] = ["succeeded", "failed", "cancelled"];
const EVENTS = 50;
const BATCH_MS = 200;
const MAX_STEPS = 20_000;

export function jobPath(id: string, part = ""): string {
  return `/fine_tuning/jobs/${encodeURIComponent(id)}${part}`;
}

/** Return the name of a job for display. */
export function nameOf(job: Job): string {
  return printable(job.suffix ?? job.id);
}

export class JobData {
  readonly id: string;
  job: Job | null = $state.raw(null);
  /** By step, oldest first. */
  steps: JobMetrics[] = $state.raw([]);
  /** Newest first. */
  events: JobEvent[] = $state.raw([]);
  moreEvents = $state(false);
  checkpoints: Checkpoint[] = $state.raw([]);
  /** Whether the job belongs to another key, so that its metrics, rollouts and settings are hidden. */
  isRestricted = $state(false);
  loaded = $state(false);
  error: unknown = $state.raw(null);
  connection: Connection | null = $state(null);

  progress: JobProgress | null = $derived.by(() => this.#progress());
  ended: boolean = $derived(this.job !== null && ENDED.includes(this.job.status));

  #arrived: JobMetrics[] = [];
  #stop: (() => void) | null = null;
  #left = false;

  constructor(id: string) {
    this.id = id;
  }

  /** Load everything, and follow the job until it has ended or `close` is called. */
  async open(): Promise<void> {
    this.error = null;
    try {
      await this.refresh();
      const first = page<JobEvent>(jobPath(this.id, "/events"), { limit: EVENTS });
      await Promise.all([this.#loadCheckpoints(), this.#loadSteps(), first.then((found) => this.#older(found))]);
      this.loaded = true;
      if (!this.ended && !this.#left) this.#stop ??= stream(this.id, (event) => this.receive(event), (state) => this.#connected(state));
    } catch (error) {
      this.error = error;
    }
  }

  close(): void {
    this.#stop?.();
    this.#stop = null;
    this.connection = null;
  }

  /** Stop following the job because the user left the page, even if `open` is still running. */
  leave(): void {
    this.#left = true;
    this.close();
  }

  async refresh(): Promise<void> {
    this.job = await get<Job>(jobPath(this.id), { include: "progress" });
    if (this.ended) this.close();
  }

  async olderEvents(): Promise<void> {
    const after = this.events.at(-1)?.id;
    this.#older(await page<JobEvent>(jobPath(this.id, "/events"), { limit: EVENTS, after }));
  }

  receive(event: StreamEvent): void {
    if (event.type === "job") {
      const before = this.job?.status;
      this.job = { ...event.job, progress: event.job.progress ?? this.job?.progress ?? null };
      if (event.job.status !== before) this.#quietly(this.refresh(), this.#loadCheckpoints());
    } else if (event.type === "metrics") {
      this.#arrived.push(event.metrics);
      if (this.#arrived.length === 1) setTimeout(() => this.#addArrived(), BATCH_MS);
    } else {
      const isNew = this.#addEvent(event.event);
      if (isNew && event.event.data?.["kind"] === "checkpoint_saved") this.#quietly(this.#loadCheckpoints());
    }
  }

  /** Add the arrived steps together, because a stream that opens sends many steps. */
  #addArrived(): void {
    this.#addSteps(this.#arrived.splice(0));
    if (!this.job?.progress?.baseline_of) this.#quietly(this.refresh());
  }

  /** Add an event, except if it is older than the shown ones: a new stream repeats old events, which load on demand. */
  #addEvent(event: JobEvent): boolean {
    const oldest = this.events.at(-1);
    if (this.events.some((known) => known.id === event.id)) return false;
    if (this.moreEvents && oldest !== undefined && event.created_at <= oldest.created_at) return false;
    const place = this.events.findIndex((known) => known.created_at <= event.created_at);
    this.events = this.events.toSpliced(place < 0 ? this.events.length : place, 0, event);
    return true;
  }

  #older(found: Page<JobEvent>): void {
    const known = new Set(this.events.map((event) => event.id));
    this.events = [...this.events, ...found.data.filter((event) => !known.has(event.id))];
    this.moreEvents = found.has_more;
  }

  async #loadCheckpoints(): Promise<void> {
    this.checkpoints = await all<Checkpoint>(jobPath(this.id, "/checkpoints"), { limit: 100 });
  }

  async #loadSteps(): Promise<void> {
    try {
      let after: string | null = null;
      do {
        const found: Page<JobMetrics> = await page(jobPath(this.id, "/metrics"), { limit: 1000, after });
        this.#addSteps(found.data);
        after = found.has_more ? found.last_id : null;
      } while (after !== null && this.steps.length < MAX_STEPS);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      this.isRestricted = true;
    }
  }

  /** Add steps. A resumed job may report a step again, which replaces the earlier report. */
  #addSteps(found: JobMetrics[]): void {
    const steps = new Map(this.steps.map((one) => [one.step_number, one]));
    for (const one of found) steps.set(one.step_number, one);
    this.steps = [...steps.values()].sort((one, other) => one.step_number - other.step_number);
  }

  /** Reload after a lost connection; if it was refused, the job or the session may no longer exist. */
  #connected(state: Connection): void {
    const back = state === "live" && this.connection === "lost";
    this.connection = state;
    if (state === "lost") this.#quietly(this.refresh());
    if (back) this.#quietly(this.refresh(), this.#loadCheckpoints());
  }

  /** Ignore failed requests, which the next event repeats; show an error only if the job no longer exists. */
  #quietly(...asked: Promise<void>[]): void {
    Promise.all(asked).catch((error: unknown) => {
      if (!(error instanceof ApiError && error.status === 404)) return;
      this.error = error;
      this.close();
    });
  }

  #progress(): JobProgress | null {
    const asked = this.job?.progress ?? null;
    const last = this.steps.at(-1);
    if (asked === null || last === undefined || last.step_number <= asked.step) return asked;
    const [train, validation] =
      asked.metric === "loss" ? ["loss", "full_valid_loss"] : ["train_mean_reward", "full_valid_mean_reward"];
    return {
      ...asked,
      step: last.step_number,
      total_steps: last.metrics["total_steps"] ?? asked.total_steps,
      train: last.metrics[train!] ?? asked.train,
      validation: this.steps.findLast((one) => one.metrics[validation!] != null)?.metrics[validation!] ?? asked.validation,
    };
  }
}
