// One card for each upstream: its state, the reason, until when, and its recent history.

import { CallsChart, WaitsChart } from "./charts.js";
import { $, KeyedRows, StatList, collectFields, setAttr, setText, setVisible } from "./dom.js";
import { clockFace, hasOverride, number, percent, phaseName, phaseText, rate, reasonText, wait } from "./words.js";

const CARDS_MAX = 50;
const SHOWN_SECONDS_MIN = 90;
const STEP_SECONDS = 30;

export class Cards {
  constructor(clock, history, actions) {
    this.clock = clock;
    this.history = history;
    this.range = 300;
    this.rows = new KeyedRows($("upstreams"), (card) => new Card(card, clock, actions), CARDS_MAX);
  }

  update(cards) {
    setVisible($("upstreams-none"), cards.length === 0);
    this.rows.update(cards, (card) => card.name);
    this.draw();
  }

  draw() {
    const now = this.clock.now();
    const range = this.visibleRange(now);
    for (const [name, card] of this.rows.rows) {
      const slots = this.history.since(name, now - range);
      card.draw({ slots, now, range, slotSeconds: this.history.slotSeconds });
    }
  }

  // A new fleet has less history than the chosen range: show what there is, in steps of 30 s, the same for all
  // cards.
  visibleRange(now) {
    const known = Math.ceil((now - this.history.oldest(now)) / STEP_SECONDS) * STEP_SECONDS;
    return Math.min(this.range, Math.max(known, SHOWN_SECONDS_MIN));
  }

  tick() {
    for (const card of this.rows.rows.values()) card.tick();
  }
}

class Card {
  constructor(card, clock, actions) {
    this.clock = clock;
    this.node = $("upstream-template").content.firstElementChild.cloneNode(true);
    this.fields = collectFields(this.node);
    this.calls = new CallsChart(this.fields.calls, card.name);
    this.waits = new WaitsChart(this.fields.waits, card.name);
    this.minute = new StatList(this.fields.minute);
    this.deadline = null;
    this.actions = actions.forUpstream(this.fields.actions, card.name);
    this.node.dataset.upstream = card.name;
    this.fields.name.id = `name-of-upstream-${card.name}`; // a prefix that no id of the page has
    this.node.setAttribute("aria-labelledby", this.fields.name.id);
    setText(this.fields.name, card.name);
  }

  update(card) {
    this.head(card);
    this.meters(card);
    this.minute.update(minuteStats(card.minute ?? {}, card.shadow ?? []));
    this.deadline = cardDeadline(card, this.clock.now(), this.deadline);
    this.tick();
    this.actions.update(card);
  }

  head(card) {
    const { word, meaning } = phaseText(card);
    setAttr(this.node, "data-phase", phaseName(card));
    setAttr(this.node, "data-paused", card.paused > 0);
    setAttr(this.fields.mark, "href", `#mark-${phaseName(card)}`);
    setText(this.fields.phase, card.shadow?.length ? `${word}, shadow` : word);
    setText(this.fields.meaning, meaning);
    setText(this.fields.reason, reasonText(card, this.clock.now()));
  }

  meters(card) {
    meter(this.fields.tokens, this.fields["tokens-bar"], card.tokens, card.capacity);
    meter(this.fields.flight, this.fields["flight-bar"], card.in_flight, card.in_flight_max);
    const lowered = card.limit < card.original * 0.995;
    const raised = card.limit > card.original * 1.005;
    setText(this.fields.limit, rate(card.limit));
    const note = lowered || raised ? `of ${rate(card.original)}` : "as configured";
    setText(this.fields["limit-note"], hasOverride(card) ? `${rate(card.configured)} configured` : note);
    setAttr(this.fields.limit.parentElement, "data-tone", lowered ? "warn" : "");
    this.updateFourthMeter(card);
  }

  updateFourthMeter(card) {
    const paused = card.paused > 0;
    setText(this.fields["fourth-name"], paused ? "Pause" : "Failures");
    setText(this.fields.fourth, paused ? `${number(Math.ceil(card.paused))} s` : number(card.failures));
    const opens = card.phase === "closed" && card.threshold ? `opens at ${number(card.threshold)}` : "";
    setText(this.fields["fourth-note"], paused ? "for all workers" : opens);
    setAttr(this.fields.fourth.parentElement, "data-tone", paused ? "warn" : "");
  }

  draw(view) {
    this.calls.draw(view);
    this.waits.draw(view);
  }

  // Update the countdown between two documents.
  tick() {
    const left = this.deadline ? this.deadline.at - this.clock.now() : 0;
    setVisible(this.fields.clock, Boolean(this.deadline));
    if (!this.deadline) return;
    setText(this.fields.left, clockFace(left));
    setText(this.fields["left-what"], left > 0 ? this.deadline.what(left) : "any moment");
    const share = Math.min(Math.max(left / this.deadline.whole, 0), 1);
    this.fields.hand.style.strokeDasharray = `${Math.round(share * 100)} 100`;
  }
}

// A pause only has its remaining time, so its length is the longest remaining time seen.
function cardDeadline(card, now, before) {
  if (card.phase === "open" && card.until) {
    const whole = Math.max(card.until - (card.since ?? now), 1);
    return { at: card.until, whole, what: (left) => (left < 100 ? "s to next attempt" : "to next attempt") };
  }
  if (!(card.paused > 0)) return null;
  const at = now + card.paused;
  const whole = before?.paused ? Math.max(before.whole, card.paused) : Math.max(card.paused, 1);
  return { at, whole, paused: true, what: (left) => (left < 100 ? "s of pause" : "of pause") };
}

function meter(node, bar, value, maximum) {
  const known = value !== null && value !== undefined;
  setText(node, known && maximum ? `${number(value)} of ${number(maximum)}` : number(value));
  setVisible(bar, Boolean(known && maximum));
  if (!known || !maximum) return;
  bar.style.setProperty("--share", `${Math.round(100 * Math.min(Math.max(value / maximum, 0), 1))}%`);
}

function minuteStats(minute, shadow) {
  const rejected = minute.open + minute.limited; // NaN if unknown
  const share = minute.calls ? percent((minute.ok ?? 0) / minute.calls) : "";
  return [
    { name: "Calls", value: number(minute.calls), note: "last minute" },
    { name: "Succeeded", value: number(minute.ok), note: share },
    { name: "Failed", value: number(minute.failed), tone: minute.failed > 0 ? "bad" : "" },
    { name: "Refused (429)", value: number(minute.refused), tone: minute.refused > 0 ? "warn" : "" },
    { name: "Rejected here", value: number(rejected), note: rejectedNote(minute) },
    ...(shadow.length ? [{ name: "Would refuse", value: number(minute.would_refuse), note: "shadow" }] : []),
    { name: "Retries", value: number(minute.retries) },
    { name: "Wait, median", value: wait(minute.wait_p50) },
    { name: "Wait, 95 / 99 %", value: `${wait(minute.wait_p95)} / ${wait(minute.wait_p99)}` },
  ];
}

function rejectedNote(minute) {
  if (minute.open && minute.limited) return `${number(minute.limited)} by the limit`;
  if (minute.open) return "breaker open";
  return minute.limited ? "by the limit" : "";
}
