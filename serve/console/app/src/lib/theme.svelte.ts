/** Dark or light theme: the system's or the user's choice. */

export type Choice = "system" | "light" | "dark";

const STORED = "agent-rft-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

class Theme {
  choice: Choice = $state((localStorage.getItem(STORED) as Choice | null) ?? "system");
  #systemIsDark = $state(dark.matches);
  shown: "light" | "dark" = $derived(
    this.choice === "system" ? (this.#systemIsDark ? "dark" : "light") : this.choice,
  );

  constructor() {
    dark.addEventListener("change", () => (this.#systemIsDark = dark.matches));
  }

  choose(choice: Choice): void {
    this.choice = choice;
    localStorage.setItem(STORED, choice);
  }
}

export const theme = new Theme();
