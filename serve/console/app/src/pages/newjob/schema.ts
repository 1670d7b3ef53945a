/** JSON schema of a job request, from the API's OpenAPI document, prepared for a form. */

export interface Schema {
  $ref?: string;
  type?: string;
  title?: string;
  description?: string;
  default?: unknown;
  const?: unknown;
  enum?: unknown[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: boolean | Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
  discriminator?: { propertyName: string; mapping: Record<string, string> };
  format?: string;
  minimum?: number;
  maximum?: number;
}

export interface OpenApi {
  paths: Record<string, Record<string, { requestBody: { content: Record<string, { schema: Schema }> } }>>;
  components: { schemas: Record<string, Schema> };
}

/** Control for a value. `words` are strings allowed instead of a number, such as auto. */
export type Control =
  | { kind: "object"; fields: [string, Schema][]; required: string[] }
  | { kind: "choice"; by: string; options: [string, Schema][] }
  | { kind: "list"; item: Schema }
  | { kind: "map"; value: Schema }
  | { kind: "enum"; values: string[] }
  | { kind: "boolean" }
  | { kind: "number"; words: string[] }
  | { kind: "text"; secret: boolean }
  | { kind: "json" };

export const FOLDED: Control["kind"][] = ["object", "choice", "list", "map", "json"];
const NEEDED = ["model", "training_file", "validation_file", "test_file", "suffix", "seed", "method", "type", "name", "tools", "grader"];

export type Values = Record<string, unknown>;

export class RequestSchema {
  readonly root: Schema;

  constructor(private readonly document: OpenApi) {
    const body = document.paths["/v1/fine_tuning/jobs"]?.["post"]?.requestBody;
    this.root = body?.content["application/json"]?.schema ?? {};
  }

  /** Resolve a reference, and `T | null` to T; keeps the description of the field. */
  resolved(schema: Schema): Schema {
    const options = schema.anyOf?.filter((option) => option.type !== "null");
    const inner =
      schema.$ref !== undefined
        ? this.document.components.schemas[schema.$ref.replace("#/components/schemas/", "")]
        : options?.length === 1
          ? options[0]
          : undefined;
    if (inner === undefined) return options === undefined ? schema : { ...schema, anyOf: options };
    return { ...this.resolved(inner), ...(schema.description === undefined ? {} : { description: schema.description }) };
  }

  control(schema: Schema): Control {
    const found = this.resolved(schema);
    if (found.discriminator !== undefined) {
      const options = Object.entries(found.discriminator.mapping).map(([name, $ref]): [string, Schema] => [name, { $ref }]);
      return { kind: "choice", by: found.discriminator.propertyName, options };
    }
    if (found.properties !== undefined)
      return { kind: "object", fields: Object.entries(found.properties), required: found.required ?? [] };
    if (found.type === "array" && found.items !== undefined && this.#isFormed(found.items))
      return { kind: "list", item: found.items };
    if (found.type === "object" && typeof found.additionalProperties === "object" && this.#isFormed(found.additionalProperties))
      return { kind: "map", value: found.additionalProperties };
    if (found.enum !== undefined) return { kind: "enum", values: found.enum.map(String) };
    if (found.type === "boolean") return { kind: "boolean" };
    const options = found.anyOf ?? [found];
    const words = options.flatMap((option) => (typeof option.const === "string" ? [option.const] : []));
    if (options.some((option) => option.type === "boolean")) return { kind: "json" };
    if (options.some((option) => option.type === "number" || option.type === "integer")) return { kind: "number", words };
    if (found.type === "string") return { kind: "text", secret: found.format === "password" };
    if (options.some((option) => option.format === "password")) return { kind: "text", secret: true };
    return { kind: "json" };
  }

  /** Sort the settings of an object: those that every job needs, then single values, then folded ones. */
  inOrder(fields: [string, Schema][]): [string, Schema][] {
    const rank = ([name, schema]: [string, Schema]): number => {
      const needed = NEEDED.indexOf(name);
      if (needed >= 0) return needed;
      return FOLDED.includes(this.control(schema).kind) ? NEEDED.length + 1 : NEEDED.length;
    };
    return fields.toSorted((a, b) => rank(a) - rank(b));
  }

  requiredFirst(schema: Schema): [string, Schema][] {
    const optional = ([name]: [string, Schema]): number => Number(!schema.required?.includes(name));
    return Object.entries(schema.properties ?? {}).toSorted((a, b) => optional(a) - optional(b));
  }

  /** Whether a value of this schema has a dedicated control instead of a JSON box. */
  #isFormed(schema: Schema): boolean {
    return this.control(schema).kind !== "json";
  }

  /** Return the initial value of a new list entry, map entry or enabled setting. */
  fresh(schema: Schema): unknown {
    const control = this.control(schema);
    if (control.kind === "object") return {};
    if (control.kind === "choice") return { [control.by]: control.options[0]?.[0] };
    if (control.kind === "list") return [];
    return "";
  }
}

/** Return the first paragraph of a description without markup. */
export function described(schema: Schema): string {
  return (schema.description ?? "").split("\n\n")[0]?.replaceAll("`", "").replace(/\s+/g, " ") ?? "";
}

/** Return the object with a value set; undefined removes it, so that the API's default applies. */
export function withValue(values: Values, name: string, value: unknown): Values {
  const rest = Object.fromEntries(Object.entries(values).filter(([key]) => key !== name));
  return value === undefined ? rest : { ...rest, [name]: value };
}

/** Parse a number; other text is returned unchanged, so that the check reports it. */
export function numberOf(text: string): unknown {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  const value = Number(trimmed);
  return Number.isFinite(value) ? value : trimmed;
}

/** Return the value without redacted secrets, and the number of secrets removed. */
export function withoutRedacted(value: unknown): [unknown, number] {
  if (typeof value === "string") return /^\*{6,}$/.test(value) ? [undefined, 1] : [value, 0];
  if (value === null || typeof value !== "object") return [value ?? undefined, 0];
  if (Array.isArray(value)) {
    const found = value.map(withoutRedacted);
    return [found.map(([entry]) => entry), found.reduce((sum, [, count]) => sum + count, 0)];
  }
  let count = 0;
  const kept: Values = {};
  for (const [name, entry] of Object.entries(value)) {
    const [inner, redacted] = withoutRedacted(entry);
    count += redacted;
    if (inner !== undefined) kept[name] = inner;
  }
  return [kept, count];
}
