// Announcements for screen readers: only changes of state, and no more often than a person can listen. Numbers
// that change every second are never announced.

import { $, setText } from "./dom.js";
import { moment, overrides, phaseName, phaseText, reasonText, sentence } from "./words.js";

const PAUSE_MS = 4000;
const WAITING_MAX = 5;

export class Announcer {
  constructor() {
    this.states = new Map();
    this.outage = null;
    this.eventsUntil = null;
    this.waiting = [];
    this.timer = null;
    this.behind = false;
  }

  update(data, now) {
    this.updateUpstreams(data.upstreams ?? [], now);
    this.updateOutage(data.state?.fallback, now);
    this.updateWorkers(data.events ?? []);
  }

  // Changes of a circuit, and what an operator decided: held, paused, another limit.
  updateUpstreams(cards, now) {
    for (const card of cards) {
      const before = this.states.get(card.name);
      const state = [phaseName(card), card.forced, card.paused > 0, ...overrides(card).map((limit) => limit.limit_text)].join();
      this.states.set(card.name, state);
      if (before && before !== state) this.add(`${card.name}: ${phaseText(card).word}. ${reasonText(card, now)}`);
    }
    const names = new Set(cards.map((card) => card.name));
    for (const name of this.states.keys()) if (!names.has(name)) this.states.delete(name);
  }

  updateOutage(fallback, now) {
    const outage = Boolean(fallback);
    if (outage && this.outage !== true) {
      this.add(`The shared store is unreachable since ${moment(fallback.since, now)}: ${sentence(fallback.reason)}`);
    } else if (!outage && this.outage) this.add("The shared store is reachable again.");
    this.outage = outage;
  }

  // Workers that stopped responding, left or are back; those of before this page was opened are old news.
  updateWorkers(events) {
    const latest = Math.max(0, ...events.map((event) => event.at));
    if (this.eventsUntil !== null) {
      const news = events.filter((event) => event.at > this.eventsUntil && event.kind.startsWith("worker_"));
      for (const event of news.reverse()) this.add(sentence(event.text));
    }
    this.eventsUntil = Math.max(this.eventsUntil ?? 0, latest);
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
