/** Login state. Scripts cannot read the cookie, so the server reports the session. */

import { go } from "./router.svelte";
import { ApiError, get, post, remove, watchStatus } from "./api";
import type { Scope, Session } from "./types";

const CHECK_MS = 30_000;
/** Key of `agent-rft train --open`. A server's API keys start with `sk-rft-` and are never read from the URL. */
const ONE_TIME_KEY = /^#key=(once-[\w-]{43})$/;
const LOOPBACK = ["127.0.0.1", "[::1]", "localhost"];
const SCOPES: Scope[] = ["read", "write", "admin"];

class Login {
  session: Session | null = $state(null);
  /** False until the server has reported whether there is a session. */
  asked = $state(false);
  /** Reason why the last session ended, for the login page. */
  ended = $state("");

  constructor() {
    watchStatus((status) => {
      if (status === 401 && this.session !== null) {
        this.session = null;
        this.ended = "You were logged out, because the login expired or its key was revoked. Log in again.";
      }
    });
    // Detects a revoked key even on a page that sends no more requests, such as the page of an ended job.
    window.setInterval(() => {
      if (this.session !== null) void get("/console/session").catch(() => {});
    }, CHECK_MS);
  }

  /**
   * Continue with the cookie. Without a session, log in with a one-time key in the URL (`#key=...`).
   *
   * Other keys in the URL are ignored, or a link could make a user work under the key of the link's author.
   */
  async start(): Promise<void> {
    const key = LOOPBACK.includes(location.hostname) ? ONE_TIME_KEY.exec(location.hash)?.[1] : undefined;
    if (location.hash.startsWith("#key=")) go(["jobs"], {}, true);
    try {
      this.session = await get<Session>("/console/session");
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status !== 401) this.ended = error.message;
      else if (key !== undefined) await this.#openOnce(key);
    }
    this.asked = true;
  }

  async #openOnce(key: string): Promise<void> {
    try {
      await this.open(key);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.ended = error.message;
    }
  }

  async open(key: string): Promise<void> {
    this.session = await post<Session>("/console/session", undefined, { authorization: `Bearer ${key.trim()}` });
    this.ended = "";
  }

  async close(): Promise<void> {
    await remove("/console/session");
    this.session = null;
  }

  /** Whether the session's key grants `scope`; a read-only console grants only `read`. */
  may(scope: Scope): boolean {
    if (this.session === null || (this.session.read_only && scope !== "read")) return false;
    return this.session.key.scopes.some((own) => SCOPES.indexOf(own) >= SCOPES.indexOf(scope));
  }
}

export const login = new Login();
