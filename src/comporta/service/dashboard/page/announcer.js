// For those who listen to the page: only what changes how things stand is said, and not more often than
// somebody can listen. Figures that move every second would never let them read anything else.

import { $, say } from "./dom.js";
import { phaseOf, phaseWords, whyWords } from "./words.js";

const PAUSE_MS = 4000;
const WAITING_MAX = 5;

export class Announcer {
  constructor() {
    this.phases = new Map();
    this.waiting = [];
    this.timer = null;
    this.behind = false;
  }

  update(cards, now) {
    for (const card of cards) {
      const before = this.phases.get(card.name);
      const phase = phaseOf(card);
      this.phases.set(card.name, phase);
      if (before && before !== phase) this.add(`${card.name}: ${phaseWords(card).word}. ${whyWords(card, now)}`);
    }
    const known = new Set(cards.map((card) => card.name));
    for (const name of this.phases.keys()) if (!known.has(name)) this.phases.delete(name);
  }

  live(behind) {
    if (behind !== this.behind) this.add(behind ? "The page is behind: reconnecting." : "The page is live again.");
    this.behind = behind;
  }

  add(words) {
    this.waiting = [...this.waiting, words].slice(-WAITING_MAX);
    this.timer ??= setTimeout(() => this.flush(), 300);
  }

  flush() {
    say($("announcer"), this.waiting.join(" "));
    this.waiting = [];
    this.timer = setTimeout(() => {
      this.timer = null;
      if (this.waiting.length) this.flush();
    }, PAUSE_MS);
  }
}
