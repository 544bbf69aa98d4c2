// The sections below the cards: workers, cache, batch jobs and events. Each list is bounded and says when it is
// empty.

import { $, KeyedRows, StatList, element, filterText, markIcon, setAttr, setText, setVisible } from "./dom.js";
import { ago, count, duration, joinList, moment, number, percent } from "./words.js";

const WORKERS_MAX = 1000;
const WORKERS_FEW = 12;
const CHOICES_MAX = 100;
const KEYS_MAX = 10;
const COVERAGE_KNOWN = 20;
const JOBS_MAX = 20;
const EVENTS_MAX = 50;
const FRESH_SECONDS = 4;
const LOST_SECONDS = 10;

export class Workers {
  // `showEvents(text)` shows the history of a worker.
  constructor(clock, showEvents) {
    this.clock = clock;
    this.showsAll = false;
    this.items = null;
    this.asOf = null;
    this.rows = new KeyedRows($("workers"), () => workerRow(this, showEvents), WORKERS_MAX);
    $("workers-filter").addEventListener("input", () => this.update(this.items, this.asOf));
    $("workers-more").addEventListener("click", () => {
      this.showsAll = !this.showsAll;
      this.update(this.items, this.asOf);
    });
  }

  // `asOf` is when the workers were known, during an outage of the store.
  update(items, asOf) {
    this.items = items;
    this.asOf = asOf;
    const workers = [...(items ?? [])].sort((one, other) => lateness(other) - lateness(one));
    setVisible($("workers-unknown"), !items);
    setVisible($("workers-none"), items?.length === 0);
    setVisible($("workers-scroll"), workers.length > 0);
    setVisible($("workers-tools"), workers.length > WORKERS_FEW);
    const wanted = filterText($("workers-filter"));
    const found = workers.filter((worker) => `${worker.name} ${holdingsText(worker)}`.toLowerCase().includes(wanted));
    const shown = found.slice(0, this.showsAll ? WORKERS_MAX : WORKERS_FEW);
    const since = asOf ? ` as of ${moment(asOf, this.clock.now())}` : "";
    setText($("workers-count"), workers.length ? `${workers.length}${since}` : "");
    this.rows.update(shown, (worker) => worker.name);
    setVisible($("workers-more"), found.length > WORKERS_FEW);
    const more = found.length - shown.length;
    setText($("workers-more"), more > 0 ? `and ${number(more)} more: show all ${number(found.length)}` : "Show fewer");
  }
}

// Silent workers come first, then late ones; the others keep their order.
function lateness(worker) {
  return ["fresh", "late", "silent"].indexOf(heartbeatState(worker.last_heartbeat));
}

function workerRow(table, showEvents) {
  const cells = ["Worker", "Last heartbeat", "Holds", "Fetches", "Jobs"].map((label, index) => {
    const cell = element(index ? "td" : "th", index > 2 ? "number" : "");
    cell.dataset.label = label;
    return cell;
  });
  cells[0].scope = "row";
  const name = element("button", "link worker-name");
  name.type = "button";
  name.title = "Show the events of this worker";
  name.addEventListener("click", () => showEvents(name.textContent));
  const since = element("span", "note");
  const dot = element("span", "beat");
  const heartbeat = element("span");
  cells[0].append(name, since);
  cells[1].append(dot, heartbeat);
  dot.setAttribute("aria-hidden", "true");
  return {
    node: element("tr", "", ...cells),
    update(worker) {
      setText(name, worker.name);
      setText(since, worker.started ? `since ${moment(worker.started, table.clock.now())}` : "");
      setAttr(dot, "data-beat", table.asOf ? "unknown" : heartbeatState(worker.last_heartbeat));
      setText(heartbeat, table.asOf ? "not known now" : heartbeatText(worker.last_heartbeat));
      setText(cells[2], holdingsText(worker));
      setText(cells[3], number(worker.fetches));
      setText(cells[4], number(worker.jobs));
    },
  };
}

function heartbeatState(age) {
  if (age > LOST_SECONDS) return "silent";
  return age > FRESH_SECONDS ? "late" : "fresh";
}

function heartbeatText(age) {
  return age > LOST_SECONDS ? `none for ${duration(age)}` : ago(age);
}

function holdingsText(worker) {
  const probes = (worker.probes ?? []).map((name) => `the probe of ${name}`);
  const permits = Object.entries(worker.permits ?? {})
    .filter(([, held]) => held > 0)
    .map(([name, held]) => `${count(held, "call")} to ${name}`);
  const leases = Object.entries(worker.leases ?? {}).map(
    ([name, held]) => `${count(held, "leased token")} of ${name}`,
  );
  return joinList([...probes, ...permits, ...leases]) || "nothing";
}

export class CachePanel {
  constructor(clock, actions, showEvents) {
    this.clock = clock;
    this.figures = new StatList($("cache-figures"));
    this.degraded = new KeyedRows($("degraded"), () => degradedRow(clock, actions, showEvents), KEYS_MAX);
    this.coverage = new KeyedRows($("coverage"), coverageRow, KEYS_MAX);
  }

  update(cache, database) {
    const used = Boolean(cache) && (cache.entries > 0 || lastMinute(cache) > 0);
    setVisible($("cache"), used);
    setVisible($("cache-none"), Boolean(cache) && !used);
    setVisible($("cache-unknown"), !cache);
    const cause = database?.status === "fail" ? "the database is unreachable" : "its statistics could not be read";
    setText($("cache-unknown"), `Not available: ${cause}.`);
    setText($("cache-count"), used ? count(cache.entries, "answer") : "");
    if (!used) return;
    this.figures.update(cacheStats(cache));
    updateSplit(cache.minute ?? {});
    const degraded = cache.degraded ?? [];
    const coverage = cache.coverage ?? [];
    this.degraded.update(degraded, (key) => key.key);
    this.coverage.update(coverage, (key) => key.key);
    setVisible($("degraded-none"), degraded.length === 0);
    const many = Math.max(cache.degraded_keys_count ?? 0, degraded.length);
    const more = many - Math.min(degraded.length, KEYS_MAX);
    setText($("degraded-more"), degraded.length && more > 0 ? `and ${number(more)} more` : "");
    setVisible($("coverage-title"), coverage.length > 0);
    const atLeast = coverage.length >= COVERAGE_KNOWN ? "at least " : ""; // the service lists no more
    const hidden = coverage.length - KEYS_MAX;
    setText($("coverage-more"), hidden > 0 ? `and ${atLeast}${number(hidden)} more` : "");
  }

  tick() {
    for (const row of this.degraded.rows.values()) row.tick();
  }
}

function lastMinute(cache) {
  const { hits = 0, stale = 0, misses = 0 } = cache.minute ?? {};
  return hits + stale + misses;
}

function cacheStats(cache) {
  // Keys are read more often than the statistics: show at least as many as are listed below.
  const degraded = Math.max(cache.degraded_keys_count ?? 0, cache.degraded?.length ?? 0);
  return [
    { name: "Hit rate", value: percent(cache.hit_rate) },
    { name: "Stale served", value: percent(cache.stale_served_rate) },
    { name: "Keys in backoff", value: number(degraded), tone: degraded ? "warn" : "" },
    { name: "Fetching", value: number(cache.fetching ?? 0) },
  ];
}

// The answers of the last minute as a bar of three parts, and as text.
function updateSplit(minute) {
  const { hits = 0, stale = 0, misses = 0 } = minute;
  const all = hits + stale + misses;
  const text = all
    ? `Last minute: ${number(hits)} fresh from the cache, ${number(stale)} stale, ${number(misses)} fetched`
    : "No requests in the last minute";
  setAttr($("cache-split"), "aria-label", text);
  setAttr($("cache-split"), "title", text);
  const parts = $("cache-split").children;
  [hits, stale, misses].forEach((part, index) => {
    parts[index].style.flexGrow = part;
    setVisible(parts[index], part > 0);
  });
}

function degradedRow(clock, actions, showEvents) {
  const key = element("button", "link key-name");
  key.type = "button";
  key.title = "Show the events of this key";
  key.addEventListener("click", () => showEvents(key.textContent));
  const what = element("span");
  const when = element("span", "when");
  const button = actions.forKey();
  let current = null;
  const row = {
    node: element("li", "", element("div", "row-head", key, when), element("div", "row-text", what), button.node),
    update(item) {
      current = item;
      setText(key, item.key);
      const coverage = item.coverage ? ` Cached coverage: ${item.coverage}.` : "";
      setText(what, `${item.reason || count(item.failures, "failure")}.${coverage}`);
      button.update(item);
      row.tick();
    },
    tick() {
      const left = (current.next_retry ?? 0) - clock.now();
      setText(when, left > 0 ? `next retry in ${duration(left)}` : "about to be retried");
    },
  };
  return row;
}

function coverageRow() {
  const key = element("code");
  const what = element("span");
  return {
    node: element("li", "", element("div", "row-head", key, what)),
    update(item) {
      setText(key, item.key);
      const missing = (item.missing ?? []).slice(0, 27);
      setText(what, `${item.of}${missing.length ? `, without ${joinList(missing)}` : ""}`);
    },
  };
}

export class Jobs {
  constructor(clock, actions) {
    this.rows = new KeyedRows($("jobs"), () => jobRow(clock, actions), JOBS_MAX);
  }

  update(jobs) {
    const items = jobs ?? [];
    setVisible($("jobs-unknown"), !jobs);
    setVisible($("jobs-none"), jobs?.length === 0);
    setVisible($("jobs-scroll"), items.length > 0);
    const running = items.filter((job) => job.status === "running").length;
    const latest = items.length >= JOBS_MAX ? ` of the latest ${JOBS_MAX}` : ""; // the service lists no more
    setText($("jobs-count"), items.length ? `${running} running${latest}` : "");
    this.rows.update(items, (job) => job.id);
  }
}

function jobRow(clock, actions) {
  const key = element("code");
  const status = element("span", "when");
  const what = element("span");
  const done = element("span", "part done");
  const failed = element("span", "part failed");
  const rest = element("span", "part rest");
  const bar = element("div", "split", done, failed, rest);
  const text = element("div", "row-text", what);
  const backfill = element("p", "row-text");
  const button = actions.forBackfill();
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-valuemin", "0");
  bar.setAttribute("aria-valuemax", "100");
  return {
    node: element("li", "", element("div", "row-head", key, status), bar, text, backfill, button.node),
    update(job) {
      const ended = job.succeeded + job.failed;
      setText(key, job.id);
      setText(status, `${job.status}${job.status === "running" ? workersText(job) : ""}`);
      setText(what, jobText(job, clock.now()));
      const parts = [job.succeeded, job.failed, job.pending];
      [done, failed, rest].forEach((part, index) => {
        part.style.flexGrow = parts[index];
        setVisible(part, parts[index] > 0);
      });
      setAttr(bar, "aria-valuenow", job.total ? Math.floor((100 * ended) / job.total) : 0);
      setAttr(bar, "aria-label", `Job ${job.id}`);
      const backfillLine = backfillText(job.backfill);
      setText(backfill, backfillLine);
      setVisible(backfill, Boolean(backfillLine));
      button.update(job);
    },
  };
}

function workersText(job) {
  if (job.workers > 1) return ` on ${number(job.workers)} workers`;
  return job.worker ? ` on ${job.worker}` : "";
}

function jobText(job, now) {
  const ended = job.succeeded + job.failed;
  const share = job.total ? ended / job.total : 1;
  const bad = job.failed ? `, ${number(job.failed)} failed` : "";
  const done = percent(Math.floor(share * 100) / 100);
  return `${number(ended)} of ${number(job.total)} done (${done})${bad}, since ${moment(job.created_at, now)}`;
}

function backfillText(backfill) {
  if (!backfill) return "";
  const rows = Number.isFinite(backfill.rows) ? `, ${count(backfill.rows, "row")} written` : "";
  return `Backfill of its sheet: ${backfill.status}${rows}`;
}

export function backfillFailed(job) {
  return job.backfill?.status === "failed";
}

export class Events {
  constructor(clock) {
    this.rows = new KeyedRows($("events"), () => eventRow(clock), EVENTS_MAX);
    this.clock = clock;
    this.items = null;
    this.found = [];
    this.kinds = new Choices($("events-kind"), "All kinds");
    this.sources = new Choices($("events-source"), "All sources");
    for (const id of ["events-search", "events-kind", "events-source"]) {
      $(id).addEventListener("input", () => this.update(this.items));
    }
    $("events-copy").addEventListener("click", () => this.copy());
  }

  // Show the history of a worker, a key or an upstream.
  show(text) {
    $("events-search").value = text;
    $("events-kind").value = "";
    $("events-source").value = "";
    this.update(this.items);
    $("events-title").scrollIntoView({ block: "start" });
    $("events-search").focus({ preventScroll: true });
  }

  update(events) {
    this.items = events;
    const items = events ?? [];
    this.kinds.update(items.map((event) => event.kind));
    this.sources.update(items.map((event) => event.source));
    this.found = items.filter(this.filter());
    setVisible($("events-unknown"), !events);
    setVisible($("events-none"), events?.length === 0);
    setVisible($("events-tools"), items.length > 0);
    setVisible($("events-scroll"), this.found.length > 0);
    this.rows.update(this.found, (event) => `${event.at} ${event.worker} ${event.kind} ${event.source}`);
    setText($("events-count"), this.countText(items.length));
  }

  filter() {
    const wanted = $("events-search").value.trim().toLowerCase();
    const [kind, source] = [$("events-kind").value, $("events-source").value];
    return (event) =>
      (!kind || event.kind === kind) &&
      (!source || event.source === source) &&
      `${event.kind} ${event.source} ${event.text} ${event.worker}`.toLowerCase().includes(wanted);
  }

  countText(all) {
    const found = this.found.length;
    const more = found > EVENTS_MAX ? `, ${EVENTS_MAX} shown and ${number(found - EVENTS_MAX)} more` : "";
    return found === all && !more ? String(all || "") : `${number(found)} of ${number(all)}${more}`;
  }

  async copy() {
    const lines = this.found.map(
      (event) => `${new Date(event.at * 1000).toISOString()} ${event.severity} ${event.source}: ${event.text} (${event.worker})`,
    );
    try {
      await navigator.clipboard.writeText(lines.join("\n"));
      setText($("events-said"), `${count(lines.length, "event")} copied.`);
    } catch {
      setText($("events-said"), "The browser does not allow this page to copy.");
    }
  }
}

// The options of a select: all values that occur, in order; the chosen one stays.
class Choices {
  constructor(select, all) {
    this.select = select;
    this.all = all;
    this.shown = null;
  }

  update(values) {
    const names = [...new Set(values)].sort().slice(0, CHOICES_MAX);
    const chosen = this.select.value;
    if (chosen && !names.includes(chosen)) names.push(chosen);
    if (this.shown === names.join("\n")) return;
    this.shown = names.join("\n");
    const options = ["", ...names].map((name) => new Option(name || this.all, name, false, name === chosen));
    this.select.replaceChildren(...options);
  }
}

const SEVERITIES = { info: "info", warning: "warn", error: "fail" };

function eventRow(clock) {
  const when = element("time");
  const source = element("strong");
  const text = element("span");
  const where = element("span", "note");
  const marks = Object.fromEntries(Object.entries(SEVERITIES).map(([name, shape]) => [name, markIcon(shape)]));
  const label = element("span", "unseen");
  const icon = element("span", "event-mark", ...Object.values(marks), label);
  return {
    node: element("li", "", when, icon, element("p", "", source, " ", text, " ", where)),
    update(event) {
      setAttr(when, "datetime", new Date(event.at * 1000).toISOString());
      setText(when, moment(event.at, clock.now()));
      const severity = SEVERITIES[event.severity] ? event.severity : "info";
      for (const [name, node] of Object.entries(marks)) node.classList.toggle("gone", name !== severity);
      setAttr(icon, "data-severity", severity);
      setText(label, severity);
      setText(source, event.source);
      setText(text, event.text);
      setText(where, event.workers > 1 ? `reported by ${event.workers} workers` : event.worker);
    },
  };
}
