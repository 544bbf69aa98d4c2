// Charts over time, drawn as SVG so that the style sheet colours them and they are sharp at any size. Every
// chart has the same few shapes for ever and only gives them new outlines: nothing piles up.

import { attribute, element, say, shape, show } from "./dom.js";
import { duration, joined, number, rate, time, wait } from "./words.js";

const LEFT = 42;
const RIGHT = 10;
const TOP = 10;
const BAND = 10;
const AXIS = 16;
const PARTS = ["ok", "refused", "failed", "away"];
const PHASES = ["closed", "half-open", "open"];
const BAND_HEIGHTS = [3, 7, BAND]; // the worse the higher: the band can be read without its colours
const FRESH_SECONDS_MIN = 3; // workers tell what they counted every two: less of a slot says nothing
const OFF_SCALE = 6; // a limit so many times above all traffic would press it flat

class Chart {
  constructor(figure, name, height) {
    this.name = name;
    this.height = height;
    this.width = 0;
    this.view = null;
    this.cursor = null;
    this.title = element("span");
    this.latest = element("span", "latest");
    this.svg = shape("svg", { role: "img", tabindex: "0", height });
    this.tip = element("div", "tip");
    this.tip.hidden = true;
    figure.append(
      element("figcaption", "", this.title, this.latest),
      element("div", "canvas", this.svg, this.tip),
    );
    this.grid = this.add("path", "grid");
    this.labels = [0, 1, 2].map(() => this.add("text", "label y"));
    this.times = [0, 1, 2].map(() => this.add("text", "label x"));
    this.nothing = this.add("text", "label nothing");
    this.watch();
  }

  add(name, className, attributes = {}) {
    const made = shape(name, { class: className, ...attributes });
    this.svg.append(made);
    return made;
  }

  watch() {
    // The observer knows the width without asking for a layout in the middle of drawing.
    new ResizeObserver(([entry]) => {
      this.width = Math.round(entry.contentRect.width);
      if (this.view) this.draw(this.view);
    }).observe(this.svg.parentElement);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.leave();
    if (!step || !this.view) return;
    event.preventDefault();
    this.tip.setAttribute("aria-live", "polite"); // asked for by key, so it may be read out
    const slot = (this.right - LEFT) * (this.view.slotSeconds / this.view.range);
    this.point((this.cursor ?? this.right) + step * Math.max(slot, 1));
  }

  point(x) {
    this.cursor = Math.min(Math.max(x, LEFT), this.right);
    if (this.view) this.tell();
  }

  leave() {
    this.cursor = null;
    this.tip.hidden = true;
    attribute(this.line, "d", "");
  }

  get right() {
    return this.width - RIGHT;
  }

  get bottom() {
    return this.height - AXIS - this.under;
  }

  x(moment) {
    const { now, range } = this.view;
    const share = (moment - now + range) / range;
    return LEFT + Math.min(Math.max(share, 0), 1) * (this.right - LEFT);
  }

  y(value) {
    return this.bottom - (Math.min(value, this.top) / this.top) * (this.bottom - TOP);
  }

  draw(view) {
    this.view = view;
    if (this.width < LEFT + RIGHT + 20) return;
    attribute(this.svg, "width", this.width);
    attribute(this.svg, "viewBox", `0 0 ${this.width} ${this.height}`);
    this.paint();
    if (this.cursor !== null) this.tell();
  }

  frame(words) {
    const lines = [this.top, this.top / 2, 0];
    attribute(this.grid, "d", lines.map((value) => `M${LEFT} ${this.y(value)}H${this.right}`).join(""));
    lines.forEach((value, index) => {
      place(this.labels[index], LEFT - 6, this.y(value) + 3.5);
      say(this.labels[index], words(value));
    });
    [0, 0.5, 1].forEach((share, index) => {
      const label = this.times[index];
      place(label, LEFT + share * (this.right - LEFT), this.height - 3);
      attribute(label, "text-anchor", ["start", "middle", "end"][index]);
      say(label, share === 1 ? "now" : `${roundly((1 - share) * this.view.range)} ago`);
    });
  }

  empty(words) {
    place(this.nothing, (LEFT + this.right) / 2, (TOP + this.bottom) / 2 + 4);
    attribute(this.nothing, "text-anchor", "middle");
    say(this.nothing, words);
  }

  // What is under the cursor, as a line in the chart and in words beside it.
  tell() {
    const { now, range, slots, slotSeconds } = this.view;
    const moment = now - range + ((this.cursor - LEFT) / (this.right - LEFT)) * range;
    const slot = slots.findLast((one) => one.start <= moment && moment <= one.start + slotSeconds);
    attribute(this.line, "d", `M${this.cursor} ${TOP}V${this.height - AXIS}`);
    const lines = slot ? this.told(slot) : [["", "nothing is known of this time"]];
    const head = slot ? `${time(slot.start)} to ${time(slot.start + slotSeconds)}` : time(moment);
    fill(this.tip, head, lines);
    this.tip.hidden = false;
    const left = this.cursor > this.width / 2;
    this.tip.style.left = left ? "auto" : `${this.cursor + 10}px`;
    this.tip.style.right = left ? `${this.width - this.cursor + 10}px` : "auto";
  }
}

export class CallsChart extends Chart {
  constructor(figure, name) {
    super(figure, name, 176);
    this.under = BAND + 8;
    this.svg.classList.add("calls");
    this.parts = Object.fromEntries(PARTS.map((part) => [part, this.add("path", `part ${part}`)]));
    this.parts.away.setAttribute("fill", "url(#hatch)");
    this.limit = this.add("path", "limit");
    this.limitLabel = this.add("text", "label limit-label", { "text-anchor": "end" });
    // The highest first: where a slot saw several states, none hides another.
    this.bands = [...PHASES].reverse().map((phase) => this.add("path", `band ${phase}`)).reverse();
    this.line = this.add("path", "cursor");
    say(this.title, "Calls a second");
  }

  paint() {
    const { slots, now, slotSeconds } = this.view;
    const rates = slots.map((slot) => ratesOf(slot, now, slotSeconds));
    const most = Math.max(0, ...rates.map((one) => one.all));
    const limit = Math.max(0, ...slots.map((slot) => slot.limit ?? 0));
    const above = most > 0 && limit > most * OFF_SCALE;
    this.top = nice(Math.max(most, above ? 0 : limit, 0.5) * 1.12);
    this.frame((value) => number(value));
    this.bars(slots, rates);
    this.limits(slots, above);
    this.phases(slots);
    this.empty(most > 0 ? "" : "no calls in this time");
    say(this.latest, slots.length ? `${rate(lately(slots, now))} now` : "");
    attribute(this.svg, "aria-label", this.summary(slots));
  }

  bars(slots, rates) {
    const outlines = Object.fromEntries(PARTS.map((part) => [part, []]));
    slots.forEach((slot, index) => {
      const [from, to] = this.edges(slot);
      let base = 0;
      for (const part of PARTS) {
        const size = rates[index][part];
        if (size > 0) outlines[part].push(box(from, to, this.y(base), this.y(base + size)));
        base += size;
      }
    });
    for (const part of PARTS) attribute(this.parts[part], "d", outlines[part].join(""));
  }

  edges(slot) {
    const from = this.x(slot.start);
    const to = this.x(Math.min(slot.start + this.view.slotSeconds, this.view.now));
    const gap = to - from > 6 ? 1.5 : 0;
    return [from, Math.max(to - gap, from)];
  }

  limits(slots, above) {
    const told = slots.filter((slot) => slot.limit > 0);
    const last = told.at(-1)?.limit;
    const outline = above ? "" : told.map((slot, index) => this.step(slot, index === 0)).join("");
    attribute(this.limit, "d", outline);
    say(this.limitLabel, last ? `limit ${rate(last)}${above ? " ↑" : ""}` : "");
    if (last) place(this.limitLabel, this.right, (above ? TOP : Math.max(this.y(last), TOP + 4)) - 4);
  }

  step(slot, first) {
    const from = this.x(slot.start);
    const to = this.x(Math.min(slot.start + this.view.slotSeconds, this.view.now));
    return `${first ? "M" : "L"}${from} ${this.y(slot.limit)}H${to}`;
  }

  phases(slots) {
    const outlines = PHASES.map(() => []);
    const floor = this.bottom + 6 + BAND;
    for (const run of runs(slots, this.view.slotSeconds)) {
      const [from, to] = [this.x(run.from), this.x(Math.min(run.to, this.view.now))];
      for (const phase of run.phases) {
        outlines[phase]?.push(box(from, to, floor, floor - BAND_HEIGHTS[phase]));
      }
    }
    this.bands.forEach((band, phase) => attribute(band, "d", outlines[phase].join("")));
  }

  told(slot) {
    const rates = ratesOf(slot, this.view.now, this.view.slotSeconds);
    return [
      ["ok", `${rate(rates.ok)} succeeded`],
      ["failed", `${rate(rates.failed)} failed`],
      ["refused", `${rate(rates.refused)} refused (429)`],
      ["away", `${rate(rates.away)} turned away here`],
      ["limit", `limit ${rate(slot.limit)}`],
      [PHASES[slot.phase] ?? "", joined(phasesOf(slot).map((phase) => PHASES[phase] ?? "no breaker"))],
    ];
  }

  summary(slots) {
    const total = (name) => slots.reduce((sum, slot) => sum + (slot[name] ?? 0), 0);
    const seen = PHASES.map((_, phase) => slots.filter((slot) => phasesOf(slot).includes(phase)).length);
    return [
      `Calls to ${this.name} in the last ${roundly(this.view.range)}:`,
      `${total("ok")} succeeded, ${total("failed")} failed, ${total("refused")} refused by it,`,
      `${total("open") + total("limited")} turned away here.`,
      `Breaker open in ${seen[2]} and half-open in ${seen[1]} of ${slots.length} times ${duration(this.view.slotSeconds)}.`,
      "Arrow keys tell single moments.",
    ].join(" ");
  }
}

export class WaitsChart extends Chart {
  constructor(figure, name) {
    super(figure, name, 92);
    this.under = 0;
    this.svg.classList.add("waits");
    this.p95 = this.add("path", "wait p95");
    this.p50 = this.add("path", "wait p50");
    this.line = this.add("path", "cursor");
    this.half = element("span");
    this.most = element("span");
    this.latest.append(element("span", "key p50"), this.half, element("span", "key p95"), this.most);
    say(this.title, "Waits for a turn");
  }

  paint() {
    const { slots } = this.view;
    const known = slots.map((slot) => slot.wait_p95 ?? 0);
    this.top = nice(Math.max(0.01, ...known) * 1.05);
    this.frame((value) => wait(value).replace(" ", ""));
    attribute(this.p95, "d", this.outline(slots, "wait_p95"));
    attribute(this.p50, "d", this.outline(slots, "wait_p50"));
    const last = slots.findLast((slot) => Number.isFinite(slot.wait_p95));
    this.empty(last ? "" : "nobody waited");
    show(this.latest, Boolean(last));
    say(this.half, last ? `half under ${wait(last.wait_p50)}` : "");
    say(this.most, last ? `95 % under ${wait(last.wait_p95)}` : "");
    const words = last ? `${this.half.textContent}, ${this.most.textContent}` : "nobody waited";
    attribute(this.svg, "aria-label", `Waits for a turn at ${this.name}: ${words}.`);
  }

  // A line through the middles of the slots, broken where nobody called; one alone is a dot (h0).
  outline(slots, name) {
    let pen = "M";
    let before = null;
    return slots
      .map((slot) => {
        const value = slot[name];
        if (!Number.isFinite(value)) {
          pen = "M";
          return "";
        }
        if (before !== null && slot.start - before > this.view.slotSeconds * 1.5) pen = "M";
        before = slot.start;
        const middle = Math.min(slot.start + this.view.slotSeconds / 2, this.view.now);
        const point = `${pen}${round(this.x(middle))} ${round(this.y(value))}`;
        const begun = pen === "M" ? "h0" : "";
        pen = "L";
        return point + begun;
      })
      .join("");
  }

  told(slot) {
    return [
      ["p95", `95 % waited less than ${wait(slot.wait_p95)}`],
      ["p50", `half waited less than ${wait(slot.wait_p50)}`],
    ];
  }
}

function ratesOf(slot, now, slotSeconds) {
  const seconds = Math.min(Math.max(now - slot.start, FRESH_SECONDS_MIN), slotSeconds);
  const each = (value) => (value ?? 0) / seconds;
  const found = {
    ok: each(slot.ok),
    refused: each(slot.refused),
    failed: each(slot.failed),
    away: each((slot.open ?? 0) + (slot.limited ?? 0)),
  };
  found.all = found.ok + found.refused + found.failed + found.away;
  return found;
}

// The rate now: of the present slot and the one before, since the present one may have just begun.
function lately(slots, now) {
  const last = slots.slice(-2);
  const all = last.reduce((sum, slot) => sum + (slot.calls ?? 0), 0);
  return all / Math.max(now - last[0].start, FRESH_SECONDS_MIN);
}

// How the breaker stood at any time of a slot, the worst first.
function phasesOf(slot) {
  return slot.phases ?? [slot.phase];
}

// Neighbouring slots of the same phases are one box: fewer shapes, and no seams between them.
function runs(slots, slotSeconds) {
  const found = [];
  for (const slot of slots) {
    const last = found.at(-1);
    const to = slot.start + slotSeconds;
    const phases = phasesOf(slot);
    if (last && `${last.phases}` === `${phases}` && slot.start - last.to < slotSeconds / 2) last.to = to;
    else found.push({ phases, from: last ? meeting(last, slot, slotSeconds) : slot.start, to });
  }
  return found;
}

function meeting(last, slot, slotSeconds) {
  return slot.start - last.to < slotSeconds / 2 ? last.to : slot.start;
}

// The next number that people like, and of which they like the half as well.
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value) * power;
}

function roundly(seconds) {
  return duration(seconds).replace(/ 00 (s|min)$/, "");
}

function box(from, to, low, high) {
  return `M${round(from)} ${round(low)}H${round(to)}V${round(high)}H${round(from)}z`;
}

function place(node, x, y) {
  attribute(node, "x", round(x));
  attribute(node, "y", round(y));
}

function round(value) {
  return Math.round(value * 10) / 10;
}

function fill(tip, head, lines) {
  while (tip.children.length < lines.length + 1) tip.append(element("div", "", element("i"), element("span")));
  while (tip.children.length > lines.length + 1) tip.lastElementChild.remove();
  const rows = [["head", head], ...lines];
  rows.forEach(([key, words], index) => {
    const row = tip.children[index];
    attribute(row.firstElementChild, "class", `key ${key}`);
    say(row.lastElementChild, words);
  });
}
