/** Conversation with a model that calls a job's tools, turn by turn as in a rollout. */

import { ApiError, post } from "../../lib/api";
import type { Message, ToolCall } from "../../lib/types";
import { jobPath } from "./data.svelte";

export const MAX_TURNS = 32;
const MAX_LOAD_S = 1_800;

export type ToolSchema = Record<string, unknown>;

interface Answer {
  choices: { message: { content: string | null; reasoning?: string; tool_calls?: ToolCall[] }; finish_reason: string }[];
}

interface ToolOutput {
  output: string;
  error: string | null;
  latency_s: number;
}

function newTrace(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `trace_${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

export class Chat {
  messages: Message[] = $state.raw([]);
  /** Description of the current wait; empty if nothing is pending. */
  waiting = $state("");
  error: unknown = $state.raw(null);
  /** Reason why the conversation stopped before an answer. */
  note = $state("");
  #round = 0;
  readonly #trace = newTrace();
  readonly #jobId: string;
  readonly #model: string;
  readonly #tools: ToolSchema[];
  readonly #item: Record<string, unknown>;

  /** `item` is the row that the tools receive. */
  constructor(jobId: string, model: string, tools: ToolSchema[], item: Record<string, unknown>) {
    this.#jobId = jobId;
    this.#model = model;
    this.#tools = tools;
    this.#item = item;
  }

  /** End the current round; its pending responses are dropped. */
  stop(): void {
    this.#round += 1;
    this.waiting = "";
  }

  /** Send messages to the model and run its tool calls, until the model calls no tool. */
  async ask(messages: Message[]): Promise<void> {
    const round = ++this.#round;
    this.error = null;
    this.note = "";
    this.messages = [...this.messages, ...messages];
    try {
      for (let turn = 0; turn < MAX_TURNS; turn++) {
        const answer = await this.#answer(round);
        if (answer === null) return;
        const { message, finish_reason: finish } = answer.choices[0]!;
        const calls = message.tool_calls ?? [];
        const { reasoning = null, content } = message;
        this.messages = [...this.messages, { role: "assistant", content, reasoning_content: reasoning, tool_calls: calls.length ? calls : null }];
        if (finish === "length") this.note = "The answer was cut off: it reached the token limit.";
        if (calls.length === 0) return;
        this.waiting = `${calls.map((call) => call.function.name).join(", ")}…`;
        const results = await Promise.all(calls.map((call) => this.#call(call)));
        if (round !== this.#round) return;
        this.messages = [...this.messages, ...results];
      }
      this.note = `The conversation was stopped after ${MAX_TURNS} turns.`;
    } catch (error) {
      if (round === this.#round) this.error = error;
    } finally {
      if (round === this.#round) this.waiting = "";
    }
  }

  /** Return the model's next message, waiting until the model is loaded; null if the round was stopped. */
  async #answer(round: number): Promise<Answer | null> {
    const until = Date.now() + 1000 * MAX_LOAD_S;
    this.waiting = "Waiting for the model…";
    for (;;) {
      try {
        const tools = this.#tools.length > 0 ? this.#tools : null;
        const messages = this.messages.map(({ reasoning_content: reasoning, ...rest }) => ({ ...rest, reasoning }));
        const answer = await post<Answer>("/chat/completions", { model: this.#model, messages, tools });
        return round === this.#round ? answer : null;
      } catch (error) {
        if (round !== this.#round) return null;
        const loading = error instanceof ApiError && error.code === "model_unavailable" && Date.now() < until;
        if (!loading) throw error;
        this.waiting = "Loading the model…";
        await new Promise((resolve) => setTimeout(resolve, 1000 * (error.retryAfterS ?? 5)));
        if (round !== this.#round) return null;
      }
    }
  }

  async #call(call: ToolCall): Promise<Message> {
    const { name, arguments: given } = call.function;
    const body = { name, arguments: given, call_id: call.id, trace_id: this.#trace, item: this.#item };
    const result = await post<ToolOutput>(jobPath(this.#jobId, "/tool/run"), body);
    return { role: "tool", tool_call_id: call.id, content: result.output };
  }
}
