/** Context that the page gives to each field of the form. */

import type { RequestSchema } from "./schema";

export const FORM = Symbol("form");

export interface FormContext {
  schema: RequestSchema;
  /** Problem that the check found in a field; empty if the field is valid. */
  problem(path: string): string;
  /** Values to choose from, such as the server's models and files; null if any value is allowed. */
  offered(path: string): { value: string; label: string }[] | null;
  /** Whether the form hides a setting. */
  isHidden(path: string, field: string): boolean;
}
