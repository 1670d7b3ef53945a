/** Formatting of numbers, times and untrusted text for display. */

const DASH = "–";

export function number(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(Math.max(digits - 1, 0));
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(size + 1))) });
}

export function percent(value: number | null | undefined): string {
  return value === null || value === undefined ? DASH : `${number(100 * value, 3)} %`;
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  if (value < 1) return `${number(1000 * value, 3)} ms`;
  if (value < 60) return `${number(value, 3)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.round(hours / 24)} days`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), units.length - 1);
  return `${number(value / 1024 ** power, 3)} ${units[power] ?? ""}`;
}

/** Format Unix seconds in the reader's time zone. */
export function time(unix: number | null | undefined): string {
  if (unix === null || unix === undefined) return DASH;
  return new Date(1000 * unix).toLocaleString("sv", { dateStyle: "short", timeStyle: "medium" });
}

export function ago(unix: number, now = Date.now() / 1000): string {
  return `${seconds(Math.round(Math.max(now - unix, 0)))} ago`;
}

/** Format a count with its noun: `plural(2, "rollout")` is "2 rollouts". */
export function plural(count: number, noun: string): string {
  return `${number(count, 7)} ${noun}${count === 1 ? "" : "s"}`;
}

// Characters that move the cursor, ring the bell, change the text direction or are invisible.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;

/** Return text of models, tools and rows with visible control characters. */
export function printable(text: string): string {
  return text.replace(HIDDEN, (character) => {
    const code = character.codePointAt(0)!;
    if (code === 0x0d) return "";
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** Indent JSON; text that is not JSON stays unchanged. */
export function pretty(value: unknown): string {
  if (typeof value !== "string") return JSON.stringify(value, null, 2) ?? "";
  if (value.length > 1_000_000) return value;
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}
