// One card for each upstream: how it stands, why, until when, and how it came to that.

import { CallsChart, WaitsChart } from "./charts.js";
import { $, Figures, Rows, attribute, fields, say, show } from "./dom.js";
import { clockFace, isChanged, number, percent, phaseOf, phaseWords, rate, wait, whyWords } from "./words.js";

const CARDS_MAX = 50;
const SHOWN_SECONDS_MIN = 90;
const STEP_SECONDS = 30;

export class Cards {
  constructor(clock, history, actions) {
    this.clock = clock;
    this.history = history;
    this.range = 300;
    this.rows = new Rows($("upstreams"), (card) => new Card(card, clock, actions), CARDS_MAX);
  }

  update(cards) {
    show($("upstreams-none"), cards.length === 0);
    this.rows.update(cards, (card) => card.name);
    this.draw();
  }

  draw() {
    const now = this.clock.now();
    const range = this.shown(now);
    for (const [name, card] of this.rows.rows) {
      const slots = this.history.since(name, now - range);
      card.draw({ slots, now, range, slotSeconds: this.history.slotSeconds });
    }
  }

  // A fleet that has just begun has no five minutes to show: then all there is, in steps of half a minute, and
  // the same for all cards.
  shown(now) {
    const known = Math.ceil((now - this.history.oldest(now)) / STEP_SECONDS) * STEP_SECONDS;
    return Math.min(this.range, Math.max(known, SHOWN_SECONDS_MIN));
  }

  tick() {
    for (const card of this.rows.rows.values()) card.tick();
  }
}

class Card {
  constructor(told, clock, actions) {
    this.clock = clock;
    this.node = $("upstream-template").content.firstElementChild.cloneNode(true);
    this.at = fields(this.node);
    this.calls = new CallsChart(this.at.calls, told.name);
    this.waits = new WaitsChart(this.at.waits, told.name);
    this.minute = new Figures(this.at.minute);
    this.deadline = null;
    this.actions = actions.forUpstream(this.at.actions, told.name);
    this.node.dataset.upstream = told.name;
    this.at.name.id = `name-of-upstream-${told.name}`; // no id of the page itself begins so
    this.node.setAttribute("aria-labelledby", this.at.name.id);
    say(this.at.name, told.name);
  }

  update(told) {
    this.head(told);
    this.meters(told);
    this.minute.update(minuteFigures(told.minute ?? {}));
    this.deadline = deadlineOf(told, this.clock.now(), this.deadline);
    this.tick();
    this.actions.update(told);
  }

  head(told) {
    const { word, meaning } = phaseWords(told);
    attribute(this.node, "data-phase", phaseOf(told));
    attribute(this.node, "data-paused", told.paused > 0);
    attribute(this.at.mark, "href", `#mark-${phaseOf(told)}`);
    say(this.at.phase, word);
    say(this.at.meaning, meaning);
    say(this.at.why, whyWords(told, this.clock.now()));
  }

  meters(told) {
    meter(this.at.tokens, this.at["tokens-bar"], told.tokens, told.capacity);
    meter(this.at.flight, this.at["flight-bar"], told.in_flight, told.in_flight_max);
    const lowered = told.limit < told.original * 0.995;
    const raised = told.limit > told.original * 1.005;
    say(this.at.limit, rate(told.limit));
    const note = lowered || raised ? `of ${rate(told.original)}` : "as configured";
    say(this.at["limit-note"], isChanged(told) ? `${rate(told.configured)} configured` : note);
    attribute(this.at.limit.parentElement, "data-tone", lowered ? "warn" : "");
    this.fourth(told);
  }

  fourth(told) {
    const paused = told.paused > 0;
    say(this.at["fourth-name"], paused ? "Pause" : "Failures");
    say(this.at.fourth, paused ? `${number(Math.ceil(told.paused))} s` : number(told.failures));
    const opens = told.phase === "closed" && told.threshold ? `opens at ${number(told.threshold)}` : "";
    say(this.at["fourth-note"], paused ? "for all workers" : opens);
    attribute(this.at.fourth.parentElement, "data-tone", paused ? "warn" : "");
  }

  draw(view) {
    this.calls.draw(view);
    this.waits.draw(view);
  }

  // The clock counts by itself between two documents.
  tick() {
    const left = this.deadline ? this.deadline.at - this.clock.now() : 0;
    show(this.at.clock, Boolean(this.deadline));
    if (!this.deadline) return;
    say(this.at.left, clockFace(left));
    say(this.at["left-what"], left > 0 ? this.deadline.what(left) : "any moment");
    const share = Math.min(Math.max(left / this.deadline.whole, 0), 1);
    this.at.hand.style.strokeDasharray = `${Math.round(share * 100)} 100`;
  }
}

// A pause says only how long it still is: it was at least as long as it has been seen.
function deadlineOf(told, now, before) {
  if (told.phase === "open" && told.until) {
    const whole = Math.max(told.until - (told.since ?? now), 1);
    return { at: told.until, whole, what: (left) => (left < 100 ? "s to next try" : "to next try") };
  }
  if (!(told.paused > 0)) return null;
  const at = now + told.paused;
  const whole = before?.paused ? Math.max(before.whole, told.paused) : Math.max(told.paused, 1);
  return { at, whole, paused: true, what: (left) => (left < 100 ? "s of pause" : "of pause") };
}

function meter(words, bar, value, most) {
  const known = value !== null && value !== undefined;
  say(words, known && most ? `${number(value)} of ${number(most)}` : number(value));
  show(bar, Boolean(known && most));
  if (!known || !most) return;
  bar.style.setProperty("--share", `${Math.round(100 * Math.min(Math.max(value / most, 0), 1))}%`);
}

function minuteFigures(minute) {
  const away = minute.open + minute.limited; // not a number where nothing is known
  const share = minute.calls ? percent((minute.ok ?? 0) / minute.calls) : "";
  return [
    { name: "Calls", value: number(minute.calls), note: "last minute" },
    { name: "Succeeded", value: number(minute.ok), note: share },
    { name: "Failed", value: number(minute.failed), tone: minute.failed > 0 ? "bad" : "" },
    { name: "Refused (429)", value: number(minute.refused), tone: minute.refused > 0 ? "warn" : "" },
    { name: "Turned away", value: number(away), note: awayNote(minute) },
    { name: "Retries", value: number(minute.retries) },
    { name: "Wait, median", value: wait(minute.wait_p50) },
    { name: "Wait, 95 / 99 %", value: `${wait(minute.wait_p95)} / ${wait(minute.wait_p99)}` },
  ];
}

function awayNote(minute) {
  if (minute.open && minute.limited) return `${number(minute.limited)} for want of room`;
  if (minute.open) return "breaker open";
  return minute.limited ? "no room in time" : "";
}
