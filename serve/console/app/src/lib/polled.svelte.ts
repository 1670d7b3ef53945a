/** Request that a page repeats while it is open, with its result; an error keeps the last value. */

import { ApiError } from "./api";

export interface Polled<T> {
  readonly value: T | null;
  readonly error: unknown;
  reload(): Promise<void>;
}

const HIDDEN_MS = 60_000;

/**
 * Call `ask` now, and again `everyMs` after each response (null: never) or after the wait that a busy server requests.
 *
 * Use it while a component is created. State that `ask` reads before it waits is tracked: a change calls `ask` again.
 */
export function polled<T>(
  ask: (signal: AbortSignal) => Promise<T>,
  everyMs: (value: T | null) => number | null = () => null,
): Polled<T> {
  let value: T | null = $state.raw(null);
  let error: unknown = $state.raw(null);
  let run: () => Promise<void> = async () => {};

  $effect(() => {
    const ended = new AbortController();
    let timer = 0;
    let asked = 0;

    run = async () => {
      window.clearTimeout(timer);
      const number = ++asked;
      try {
        const found = await ask(ended.signal);
        if (ended.signal.aborted || number !== asked) return;
        value = found;
        error = null;
      } catch (failure) {
        if (ended.signal.aborted || number !== asked) return;
        error = failure;
      }
      const busyS = error instanceof ApiError ? error.retryAfterS : null;
      const wait = busyS === null ? everyMs(value) : 1_000 * busyS;
      if (wait !== null) timer = window.setTimeout(() => void run(), document.hidden ? HIDDEN_MS : wait);
    };
    void run();
    return () => {
      ended.abort();
      window.clearTimeout(timer);
    };
  });

  return {
    get value() {
      return value;
    },
    get error() {
      return error;
    },
    reload: () => run(),
  };
}
