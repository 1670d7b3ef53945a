/** What each field of the form needs of the page. */

import type { RequestSchema } from "./schema";

export const FORM = Symbol("form");

export interface FormContext {
  schema: RequestSchema;
  /** What the check says of a field; empty: nothing. */
  problem(path: string): string;
  /** Values to choose from, such as the server's models and files; null: the field is free. */
  offered(path: string): { value: string; label: string }[] | null;
  /** Settings that the form does not offer. */
  isHidden(path: string, field: string): boolean;
}
