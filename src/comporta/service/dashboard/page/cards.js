// One card for each upstream: its state, the reason, until when, and its recent history.

import { CallsChart, LinesChart } from "./charts.js";
import { $, KeyedRows, StatList, collectFields, element, filterText, setAttr, setText, setVisible, svgElement } from "./dom.js";
import { clockFace, count, joinList, moment, number, overrides, percent, phaseName, phaseText, rate, reasonText, shadowText, toneOf, urgency, wait, waitingText } from "./words.js";

const CARDS_MAX = 200;
const COMPACT_FROM = 12; // more upstreams than this are one line each
const ORDERED_FROM = 4; // up to this many fit on a screen and keep their places
const HOLDERS_MAX = 8;
const FAILURES_MAX = 5;
const SHOWN_SECONDS_MIN = 90;
const STEP_SECONDS = 30;

export class Cards {
  constructor(clock, history, actions) {
    this.clock = clock;
    this.history = history;
    this.actions = actions;
    this.range = 300;
    this.cards = [];
    this.context = { workers: [], fallback: null };
    this.isCompact = false;
    this.selected = selectedName();
    this.mustShow = this.selected !== null;
    this.makeRows();
    $("upstream-filter").addEventListener("input", () => this.update(this.cards, this.context));
    window.addEventListener("hashchange", () => {
      if (selectedName() === null) return;
      this.selected = selectedName();
      this.mustShow = true;
      this.update(this.cards, this.context);
    });
  }

  makeRows() {
    const make = (card) => (this.isCompact ? new CompactRow(card, this) : new Card(card, this));
    $("upstreams").replaceChildren();
    $("upstreams").classList.toggle("compact", this.isCompact);
    this.rows = new KeyedRows($("upstreams"), make, CARDS_MAX);
  }

  // `context` has what concerns all cards: the workers, and the fallback of this worker during an outage.
  update(cards, context) {
    this.cards = cards;
    this.context = context;
    setVisible($("upstreams-none"), cards.length === 0);
    if (this.isCompact !== cards.length > COMPACT_FROM) {
      this.isCompact = !this.isCompact;
      this.makeRows();
    }
    setVisible($("upstream-tools"), this.isCompact);
    const ordered = cards.length > ORDERED_FROM ? worstFirst(cards) : cards;
    if (this.isCompact && !this.mustShow) this.selected ??= ordered[0].name;
    if (this.mustShow && this.isCompact && !matches(this.selected, cards)) $("upstream-filter").value = "";
    const wanted = filterText($("upstream-filter"));
    const found = ordered.filter((card) => `${card.name} ${phaseText(card).word}`.toLowerCase().includes(wanted));
    setText($("upstream-count"), countText(found.length, cards.length));
    this.rows.update(found, (card) => card.name);
    this.draw();
    this.showSelected();
  }

  // Scroll to the upstream in the address, once its card exists.
  showSelected() {
    const row = this.mustShow && this.rows.rows.get(this.selected);
    if (!row) return;
    this.mustShow = false;
    row.node.scrollIntoView({ block: "start" });
  }

  draw() {
    const now = this.clock.now();
    const range = this.visibleRange(now);
    const slotSeconds = this.history.slotSeconds;
    for (const [name, row] of this.rows.rows) {
      const [slots, latencies] = [name, `latency.${name}`].map((series) =>
        row.isOpen ? this.history.since(series, now - range) : [],
      );
      row.draw({ slots, now, range, slotSeconds }, { slots: latencies, now, range, slotSeconds });
    }
  }

  // A new fleet has less history than the chosen range: show what there is, in steps of 30 s, the same for all
  // cards.
  visibleRange(now) {
    const known = Math.ceil((now - this.history.oldest(now)) / STEP_SECONDS) * STEP_SECONDS;
    return Math.min(this.range, Math.max(known, SHOWN_SECONDS_MIN));
  }

  tick() {
    for (const row of this.rows.rows.values()) row.tick();
  }
}

function selectedName() {
  const [kind, name] = location.hash.slice(1).split("/", 2);
  return kind === "upstream" && name ? decodeURIComponent(name) : null;
}

function matches(name, cards) {
  const card = cards.find((each) => each.name === name);
  return !card || `${card.name} ${phaseText(card).word}`.toLowerCase().includes(filterText($("upstream-filter")));
}

function worstFirst(cards) {
  return [...cards].sort((one, other) => urgency(other) - urgency(one) || (one.name < other.name ? -1 : 1));
}

function countText(found, all) {
  const shown = Math.min(found, CARDS_MAX);
  if (shown === all) return count(all, "upstream");
  const more = found > shown ? `, and ${number(found - shown)} more` : "";
  return `${number(shown)} of ${count(all, "upstream")}${more}`;
}

// One line of a large fleet: name, state, reason and the most important numbers; the selected one has its card.
class CompactRow {
  constructor({ name }, cards) {
    this.name = name;
    this.cards = cards;
    this.card = null;
    this.mark = svgElement("use");
    this.link = element("a", "row-link", name);
    this.link.href = `#upstream/${encodeURIComponent(name)}`;
    this.link.addEventListener("click", (event) => this.toggle(event));
    this.state = element("span", "row-state", svgElement("svg", { class: "mark", "aria-hidden": "true" }, this.mark));
    this.word = element("span");
    this.state.append(this.word);
    this.reason = element("span", "row-reason");
    this.numbers = element("span", "row-numbers");
    this.head = element("div", "compact-row", this.link, this.state, this.numbers, this.reason);
    this.node = element("div", "compact-item", this.head);
    this.node.dataset.upstream = name;
  }

  get isOpen() {
    return this.card !== null;
  }

  // A second click closes the card again.
  toggle(event) {
    if (this.cards.selected !== this.name) return;
    event.preventDefault();
    this.cards.selected = this.isOpen ? "" : this.name;
    history.replaceState(null, "", this.isOpen ? location.pathname : this.link.href);
    this.cards.update(this.cards.cards, this.cards.context);
  }

  update(card) {
    const isSelected = this.cards.selected === this.name;
    setAttr(this.node, "data-tone", toneOf(card));
    setAttr(this.node, "data-phase", phaseName(card));
    setAttr(this.link, "aria-expanded", isSelected);
    setAttr(this.mark, "href", `#mark-${markOf(card)}`);
    setText(this.word, phaseText(card).word);
    setText(this.reason, urgency(card) ? reasonText(card, this.cards.clock.now()) : "");
    setText(this.numbers, rowNumbers(card));
    if (isSelected && !this.card) {
      this.card = new Card(card, this.cards);
      delete this.card.node.dataset.upstream; // the row has it
      this.node.append(this.card.node);
    } else if (!isSelected && this.card) {
      this.card.node.remove();
      this.card = null;
    }
    this.card?.update(card);
  }

  draw(calls, latencies) {
    this.card?.draw(calls, latencies);
  }

  tick() {
    this.card?.tick();
  }
}

function rowNumbers(card) {
  const minute = card.minute ?? {};
  const sent = (minute.calls - minute.open - minute.limited) / 60;
  const failed = minute.failed > 0 ? `, ${number(minute.failed)} failed` : "";
  return minute.calls >= 0 ? `${rate(sent)} of ${rate(card.limit)}${failed}` : `limit ${rate(card.limit)}`;
}

// A closed circuit that an operator holds, or that is paused, must not look fine.
function markOf(card) {
  const tone = toneOf(card);
  return phaseName(card) === "closed" && tone === "warn" ? "warn" : phaseName(card);
}

class Card {
  constructor(card, cards) {
    this.clock = cards.clock;
    this.cards = cards;
    this.node = $("upstream-template").content.firstElementChild.cloneNode(true);
    this.fields = collectFields(this.node);
    this.calls = new CallsChart(this.fields.calls, card.name);
    this.latencies = new LinesChart(this.fields.latencies, card.name, "latency", "Latency of the upstream");
    this.waits = new LinesChart(this.fields.waits, card.name, "wait", "Waits for the limit");
    this.isOpen = true;
    this.minute = new StatList(this.fields.minute);
    this.limits = new StatList(this.fields.limits);
    this.failureRows = new KeyedRows(this.fields.failures, () => failureRow(this.clock), FAILURES_MAX);
    this.deadline = null;
    this.actions = cards.actions.forUpstream(this.fields.actions, card.name);
    this.node.dataset.upstream = card.name;
    this.fields.name.id = `name-of-upstream-${card.name}`; // a prefix that no id of the page has
    this.node.setAttribute("aria-labelledby", this.fields.name.id);
    setText(this.fields.name, card.name);
    this.fields.name.href = `#upstream/${encodeURIComponent(card.name)}`;
  }

  update(card) {
    const { fallback, workers } = this.cards.context;
    this.head(card);
    this.meters(card, fallback);
    setText(this.fields.holders, holdersText(card, workers));
    this.failures(card.last_failures ?? []);
    this.minute.update(minuteStats(card.minute ?? {}, card.shadow ?? [], fallback));
    setVisible(this.fields.limits, (card.limits ?? []).length > 0);
    this.limits.update((card.limits ?? []).map(limitStat));
    this.deadline = cardDeadline(card, this.clock.now(), this.deadline);
    this.tick();
    this.actions.update(card);
  }

  head(card) {
    const { word, meaning } = phaseText(card);
    setAttr(this.node, "data-phase", phaseName(card));
    setAttr(this.node, "data-tone", toneOf(card));
    setAttr(this.fields.mark, "href", `#mark-${markOf(card)}`);
    setText(this.fields.phase, word);
    setVisible(this.fields.shadow, Boolean(card.shadow?.length));
    setText(this.fields.shadow, shadowText(card));
    setText(this.fields.meaning, meaning);
    setText(this.fields.reason, reasonText(card, this.clock.now()));
  }

  meters(card, fallback) {
    setVisible(this.fields["tokens-note"], Boolean(fallback));
    setText(this.fields["tokens-note"], "of this worker");
    meter(this.fields.tokens, this.fields["tokens-bar"], card.tokens, card.capacity);
    meter(this.fields.flight, this.fields["flight-bar"], card.in_flight, card.in_flight_max);
    setVisible(this.fields["waiting-note"], Boolean(waitingText(card)));
    setText(this.fields["waiting-note"], waitingText(card));
    const lowered = card.limit < card.original * 0.995;
    const raised = card.limit > card.original * 1.005;
    setText(this.fields.limit, rate(card.limit));
    const note = lowered || raised ? `of ${rate(card.original)}` : "as configured";
    const share = fallback?.workers > 1 ? `of the fleet; here 1/${number(fallback.workers)}` : "";
    const overridden = overrides({ ...card, limits: [] }).length > 0; // this meter shows the first limit
    setText(this.fields["limit-note"], share || (overridden ? `${card.configured_text} configured` : note));
    setAttr(this.fields.limit.parentElement, "data-tone", lowered || overridden ? "warn" : "");
    this.updateFourthMeter(card);
  }

  updateFourthMeter(card) {
    const paused = card.paused > 0;
    setText(this.fields["fourth-name"], paused ? "Pause" : "Failed attempts");
    setText(this.fields.fourth, paused ? `${number(Math.ceil(card.paused))} s` : number(card.failures));
    const counts = card.phase === "closed" && card.threshold && !card.forced;
    const opens = counts ? `in a row; opens at ${number(card.threshold)}` : "in a row";
    setText(this.fields["fourth-note"], paused ? "for all workers" : opens);
    setAttr(this.fields.fourth.parentElement, "data-tone", paused ? "warn" : "");
  }

  // The same failure of several workers at one moment is one row for each.
  failures(failures) {
    setVisible(this.fields["failures-title"], failures.length > 0);
    this.failureRows.update(failures, ({ at, worker, text }) => `${at} ${worker} ${text}`);
  }

  draw(view, latencies) {
    this.calls.draw(view);
    this.latencies.draw(latencies);
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

// When an attempt failed, why, and in which worker.
function failureRow(clock) {
  const [at, text, worker] = [element("time"), element("span"), element("span", "quiet")];
  return {
    node: element("li", "", at, " ", text, " ", worker),
    update(failure) {
      setText(at, moment(failure.at, clock.now()));
      setText(text, failure.text || "No text.");
      setText(worker, failure.worker);
    },
  };
}

// Which workers hold permits, probes and leases of an upstream.
function holdersText(card, workers) {
  const held = Object.entries(card.holders ?? {}).map(([name, calls]) => `${name} (${count(calls, "call")})`);
  const probes = (card.probes ?? []).map((name) => `${name} (a probe)`);
  const leases = workers
    .filter((worker) => worker.leases?.[card.name])
    .map((worker) => `${worker.name} (${count(worker.leases[card.name], "leased token")})`);
  const all = [...probes, ...held, ...leases];
  if (!all.length) return "";
  const more = all.length > HOLDERS_MAX ? [`${number(all.length - HOLDERS_MAX)} more`] : [];
  return `In use by ${joinList([...all.slice(0, HOLDERS_MAX), ...more])}.`;
}

// A pause only has its remaining time, so its length is the longest remaining time seen.
function cardDeadline(card, now, before) {
  if (card.phase === "open" && card.until && !card.shadow?.includes("breaker")) {
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

// One of several limits: what it has left, and its rate.
function limitStat(limit) {
  const lowered = limit.limit < limit.original * 0.995;
  const overridden = overrides(limit).length > 0;
  const value = `${number(limit.tokens)} of ${number(limit.capacity)}`;
  const usual = lowered ? `${rate(limit.limit)} of ${limit.limit_text}` : limit.limit_text || rate(limit.limit);
  const note = overridden ? `${limit.limit_text}, ${limit.configured_text} configured` : usual;
  return { name: limit.name, value, note, tone: lowered || overridden ? "warn" : "" };
}

// During an outage of the store the counts are those of the minute before it.
function minuteStats(minute, shadow, fallback) {
  const rejected = minute.open + minute.limited; // NaN if unknown
  const share = minute.calls ? percent((minute.ok ?? 0) / minute.calls) : "";
  return [
    { name: "Calls", value: number(minute.calls), note: fallback ? "before the outage" : "last minute" },
    { name: "Succeeded", value: number(minute.ok), note: share },
    { name: "Failed calls", value: number(minute.failed), tone: minute.failed > 0 ? "bad" : "" },
    { name: "Refused (429)", value: number(minute.refused), tone: minute.refused > 0 ? "warn" : "" },
    { name: "Rejected here", value: number(rejected), note: rejectedNote(minute) },
    ...(shadow.length ? [{ name: "Would refuse", value: number(minute.would_refuse), note: "shadow" }] : []),
    { name: "Retries", value: number(minute.retries) },
    { name: "Latency, median", value: wait(minute.latency_p50) },
    { name: "Latency, 95 / 99 %", value: `${wait(minute.latency_p95)} / ${wait(minute.latency_p99)}` },
    { name: "Wait, median", value: wait(minute.wait_p50) },
    { name: "Wait, 95 / 99 %", value: `${wait(minute.wait_p95)} / ${wait(minute.wait_p99)}` },
  ];
}

function rejectedNote(minute) {
  if (minute.open && minute.limited) return `${number(minute.limited)} by the limit`;
  if (minute.open) return "breaker open";
  return minute.limited ? "by the limit" : "";
}
