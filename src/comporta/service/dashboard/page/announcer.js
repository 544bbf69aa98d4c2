// Announcements for screen readers: only changes of state, and no more often than a person can listen. Numbers
// that change every second are never announced.

import { $, setText } from "./dom.js";
import { phaseName, phaseText, reasonText } from "./words.js";

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
      const phase = phaseName(card);
      this.phases.set(card.name, phase);
      if (before && before !== phase) this.add(`${card.name}: ${phaseText(card).word}. ${reasonText(card, now)}`);
    }
    const names = new Set(cards.map((card) => card.name));
    for (const name of this.phases.keys()) if (!names.has(name)) this.phases.delete(name);
  }

  setBehind(behind) {
    if (behind !== this.behind) this.add(behind ? "The page is behind and reconnects." : "The page is live again.");
    this.behind = behind;
  }

  add(text) {
    this.waiting = [...this.waiting, text].slice(-WAITING_MAX);
    this.timer ??= setTimeout(() => this.flush(), 300);
  }

  flush() {
    setText($("announcer"), this.waiting.join(" "));
    this.waiting = [];
    this.timer = setTimeout(() => {
      this.timer = null;
      if (this.waiting.length) this.flush();
    }, PAUSE_MS);
  }
}
