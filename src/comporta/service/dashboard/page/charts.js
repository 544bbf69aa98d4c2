// Charts over time as SVG: the style sheet colours them, and they are sharp at any size. Each chart keeps the
// same few shapes and only changes their outlines, so that no nodes accumulate.

import { element, setAttr, setText, setVisible, svgElement } from "./dom.js";
import { duration, joinList, number, rate, time, wait } from "./words.js";

const LEFT = 42;
const RIGHT = 10;
const TOP = 10;
const BAND = 10;
const AXIS = 16;
const PARTS = ["ok", "refused", "failed", "away"];
const PHASES = ["closed", "half-open", "open"];
const BAND_HEIGHTS = [3, 7, BAND]; // the worse, the higher: readable without colours
const FRESH_SECONDS_MIN = 3; // workers publish every 2 s: less of a slot is not meaningful
const OFF_SCALE = 6; // a limit this many times above the traffic would flatten it

let pointedAt = null; // the chart whose tooltip was shown last
document.addEventListener("pointerdown", (event) => {
  if (pointedAt && !pointedAt.svg.contains(event.target)) pointedAt.hideTip();
});

class Chart {
  constructor(figure, name, height) {
    this.name = name;
    this.height = height;
    this.width = 0;
    this.view = null;
    this.cursor = null;
    this.title = element("span");
    this.latest = element("span", "latest");
    this.svg = svgElement("svg", { role: "img", tabindex: "0", height });
    this.tip = element("div", "tip");
    this.tip.hidden = true;
    figure.append(
      element("figcaption", "", this.title, this.latest),
      element("div", "canvas", this.svg, this.tip),
    );
    this.grid = this.add("path", "grid");
    this.labels = [0, 1, 2].map(() => this.add("text", "label y"));
    this.times = [0, 1, 2].map(() => this.add("text", "label x"));
    this.emptyLabel = this.add("text", "label nothing");
    this.listen();
  }

  add(name, className, attributes = {}) {
    const node = svgElement(name, { class: className, ...attributes });
    this.svg.append(node);
    return node;
  }

  listen() {
    // The observer provides the width without forcing a layout while drawing.
    new ResizeObserver(([entry]) => {
      this.width = Math.round(entry.contentRect.width);
      if (this.view) this.draw(this.view);
    }).observe(this.svg.parentElement);
    this.svg.addEventListener("pointermove", (event) => this.moveCursor(event.offsetX));
    this.svg.addEventListener("pointerdown", (event) => this.moveCursor(event.offsetX));
    // A finger that is lifted leaves the chart: its tooltip stays until the next tap elsewhere.
    this.svg.addEventListener("pointerleave", (event) => event.pointerType === "touch" || this.hideTip());
    this.svg.addEventListener("blur", () => this.hideTip());
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.hideTip();
    if (!step || !this.view) return;
    event.preventDefault();
    this.tip.setAttribute("aria-live", "polite"); // requested with the keyboard, so it may be announced
    const slot = (this.right - LEFT) * (this.view.slotSeconds / this.view.range);
    this.moveCursor((this.cursor ?? this.right) + step * Math.max(slot, 1));
  }

  moveCursor(x) {
    pointedAt = this;
    this.cursor = Math.min(Math.max(x, LEFT), this.right);
    if (this.view) this.showTip();
  }

  hideTip() {
    this.cursor = null;
    this.tip.hidden = true;
    setAttr(this.line, "d", "");
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
    setAttr(this.svg, "width", this.width);
    setAttr(this.svg, "viewBox", `0 0 ${this.width} ${this.height}`);
    this.drawContent();
    if (this.cursor !== null) this.showTip();
  }

  drawAxes(label) {
    const lines = [this.top, this.top / 2, 0];
    setAttr(this.grid, "d", lines.map((value) => `M${LEFT} ${this.y(value)}H${this.right}`).join(""));
    lines.forEach((value, index) => {
      place(this.labels[index], LEFT - 6, this.y(value) + 3.5);
      setText(this.labels[index], label(value));
    });
    [0, 0.5, 1].forEach((share, index) => {
      const label = this.times[index];
      place(label, LEFT + share * (this.right - LEFT), this.height - 3);
      setAttr(label, "text-anchor", ["start", "middle", "end"][index]);
      setText(label, share === 1 ? "now" : `${shortDuration((1 - share) * this.view.range)} ago`);
    });
  }

  setEmptyText(text) {
    place(this.emptyLabel, (LEFT + this.right) / 2, (TOP + this.bottom) / 2 + 4);
    setAttr(this.emptyLabel, "text-anchor", "middle");
    setText(this.emptyLabel, text);
  }

  // Show the slot under the cursor: a line in the chart and a tooltip.
  showTip() {
    const { now, range, slots, slotSeconds } = this.view;
    const moment = now - range + ((this.cursor - LEFT) / (this.right - LEFT)) * range;
    const slot = slots.findLast(({ start }) => start <= moment && moment <= start + slotSeconds);
    setAttr(this.line, "d", `M${this.cursor} ${TOP}V${this.height - AXIS}`);
    const lines = slot ? this.slotLines(slot) : [["", "no data"]];
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
    // The highest first, so that no state of a slot hides another.
    this.bands = [...PHASES].reverse().map((phase) => this.add("path", `band ${phase}`)).reverse();
    this.line = this.add("path", "cursor");
    setText(this.title, "Calls a second");
  }

  drawContent() {
    const { slots, now, slotSeconds } = this.view;
    const rates = slots.map((slot) => slotRates(slot, now, slotSeconds));
    const peak = Math.max(0, ...rates.map(({ all }) => all));
    // A limit far above the traffic would flatten it; the line is then at the top of the chart.
    const limits = slots.map((slot) => slot.limit ?? 0).filter((limit) => !peak || limit <= peak * OFF_SCALE);
    this.top = niceCeiling(Math.max(peak, 0.5, ...limits) * 1.12);
    this.drawAxes((value) => number(value));
    this.bars(slots, rates);
    this.limits(slots);
    this.phases(slots);
    this.setEmptyText(peak > 0 ? "" : slots.length ? "no calls" : "no data");
    const current = slots.length > 0 && now - slots.at(-1).start < 2 * slotSeconds;
    setText(this.latest, current ? `${rate(currentRate(slots, now))} sent now` : "no current data");
    setAttr(this.svg, "aria-label", this.summary(slots));
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
    for (const part of PARTS) setAttr(this.parts[part], "d", outlines[part].join(""));
  }

  edges(slot) {
    const from = this.x(slot.start);
    const to = this.x(Math.min(slot.start + this.view.slotSeconds, this.view.now));
    const gap = to - from > 6 ? 1.5 : 0;
    return [from, Math.max(to - gap, from)];
  }

  limits(slots) {
    const limited = slots.filter((slot) => slot.limit > 0);
    const last = limited.at(-1)?.limit;
    setAttr(this.limit, "d", limited.map((slot, index) => this.step(slot, index === 0)).join(""));
    setText(this.limitLabel, last ? `limit ${rate(last)}${last > this.top ? " ↑" : ""}` : "");
    if (last) place(this.limitLabel, this.right, Math.max(this.y(last), TOP + 4) - 4);
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
    this.bands.forEach((band, phase) => setAttr(band, "d", outlines[phase].join("")));
  }

  slotLines(slot) {
    const rates = slotRates(slot, this.view.now, this.view.slotSeconds);
    return [
      ["ok", `${rate(rates.ok)} succeeded`],
      ["failed", `${rate(rates.failed)} failed`],
      ["refused", `${rate(rates.refused)} refused (429)`],
      ["away", `${rate(rates.away)} rejected here`],
      ["limit", `limit ${rate(slot.limit)}`],
      [PHASES[slot.phase] ?? "", joinList(slotPhases(slot).map((phase) => PHASES[phase] ?? "no breaker"))],
    ];
  }

  summary(slots) {
    const total = (name) => slots.reduce((sum, slot) => sum + (slot[name] ?? 0), 0);
    const seen = PHASES.map((_, phase) => slots.filter((slot) => slotPhases(slot).includes(phase)).length);
    return [
      `Calls to ${this.name} in the last ${shortDuration(this.view.range)}:`,
      `${total("ok")} succeeded, ${total("failed")} failed, ${total("refused")} were refused by the upstream,`,
      `${total("open") + total("limited")} were rejected here.`,
      `Breaker open in ${seen[2]} and half-open in ${seen[1]} of ${slots.length} slots of ${duration(this.view.slotSeconds)}.`,
      "Use the arrow keys to read single slots.",
    ].join(" ");
  }
}

// Median and 95 % of a duration, as lines.
export class LinesChart extends Chart {
  constructor(figure, name, column, title) {
    super(figure, name, 92);
    this.under = 0;
    this.column = column;
    this.svg.classList.add(column);
    this.p95 = this.add("path", "wait p95");
    this.p50 = this.add("path", "wait p50");
    this.line = this.add("path", "cursor");
    this.median = element("span");
    this.tail = element("span");
    this.latest.append(element("span", "key p50"), this.median, element("span", "key p95"), this.tail);
    setText(this.title, title);
  }

  drawContent() {
    const { slots } = this.view;
    const [p50, p95] = [`${this.column}_p50`, `${this.column}_p95`];
    this.top = niceCeiling(Math.max(0.01, ...slots.map((slot) => slot[p95] ?? 0)) * 1.05);
    this.drawAxes((value) => wait(value).replace(" ", ""));
    setAttr(this.p95, "d", this.outline(slots, p95));
    setAttr(this.p50, "d", this.outline(slots, p50));
    const last = slots.findLast((slot) => Number.isFinite(slot[p95]));
    this.setEmptyText(last ? "" : "no calls");
    setVisible(this.latest, Boolean(last));
    setText(this.median, last ? `median ${wait(last[p50])}` : "");
    setText(this.tail, last ? `95 % under ${wait(last[p95])}` : "");
    const text = last ? `${this.median.textContent}, ${this.tail.textContent}` : "no calls";
    setAttr(this.svg, "aria-label", `${this.title.textContent} of ${this.name}: ${text}.`);
  }

  // A line through the middles of the slots, interrupted where there were no calls; a single slot is a dot (h0).
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

  slotLines(slot) {
    return [
      ["p95", `95 % under ${wait(slot[`${this.column}_p95`])}`],
      ["p50", `median ${wait(slot[`${this.column}_p50`])}`],
    ];
  }
}

function slotRates(slot, now, slotSeconds) {
  const seconds = Math.min(Math.max(now - slot.start, FRESH_SECONDS_MIN), slotSeconds);
  const each = (value) => (value ?? 0) / seconds;
  const rates = {
    ok: each(slot.ok),
    refused: each(slot.refused),
    failed: each(slot.failed),
    away: each((slot.open ?? 0) + (slot.limited ?? 0)),
  };
  rates.all = rates.ok + rates.refused + rates.failed + rates.away;
  return rates;
}

// The current rate of calls that are sent, from the last two slots, because the current one may have just begun.
function currentRate(slots, now) {
  const last = slots.slice(-2);
  const sent = (slot) => (slot.calls ?? 0) - (slot.open ?? 0) - (slot.limited ?? 0);
  const all = last.reduce((sum, slot) => sum + sent(slot), 0);
  return all / Math.max(now - last[0].start, FRESH_SECONDS_MIN);
}

// All states of the breaker during a slot, the worst first.
function slotPhases(slot) {
  return slot.phases ?? [slot.phase];
}

// Neighbouring slots with the same phases become one box, without seams.
function runs(slots, slotSeconds) {
  const merged = [];
  for (const slot of slots) {
    const last = merged.at(-1);
    const to = slot.start + slotSeconds;
    const phases = slotPhases(slot);
    if (last && `${last.phases}` === `${phases}` && slot.start - last.to < slotSeconds / 2) last.to = to;
    else merged.push({ phases, from: last ? runStart(last, slot, slotSeconds) : slot.start, to });
  }
  return merged;
}

function runStart(last, slot, slotSeconds) {
  return slot.start - last.to < slotSeconds / 2 ? last.to : slot.start;
}

// The next round number whose half is round as well.
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value) * power;
}

function shortDuration(seconds) {
  return duration(seconds).replace(/ 00 (s|min)$/, "");
}

function box(from, to, low, high) {
  return `M${round(from)} ${round(low)}H${round(to)}V${round(high)}H${round(from)}z`;
}

function place(node, x, y) {
  setAttr(node, "x", round(x));
  setAttr(node, "y", round(y));
}

function round(value) {
  return Math.round(value * 10) / 10;
}

function fill(tip, head, lines) {
  while (tip.children.length < lines.length + 1) tip.append(element("div", "", element("i"), element("span")));
  while (tip.children.length > lines.length + 1) tip.lastElementChild.remove();
  const rows = [["head", head], ...lines];
  rows.forEach(([key, text], index) => {
    const row = tip.children[index];
    setAttr(row.firstElementChild, "class", `key ${key}`);
    setText(row.lastElementChild, text);
  });
}
