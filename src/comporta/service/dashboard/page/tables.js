// The sections below the cards: workers, cache, batch jobs and events. Each list is bounded and says when it is
// empty.

import { $, KeyedRows, StatList, element, markIcon, setAttr, setText, setVisible } from "./dom.js";
import { ago, count, duration, joinList, number, percent, time } from "./words.js";

const WORKERS_MAX = 64;
const KEYS_MAX = 10;
const JOBS_MAX = 20;
const EVENTS_MAX = 50;
const FRESH_SECONDS = 4;
const LOST_SECONDS = 10;

export class Workers {
  constructor(clock) {
    this.clock = clock;
    this.rows = new KeyedRows($("workers"), workerRow, WORKERS_MAX);
  }

  update(items) {
    const workers = items ?? [];
    setVisible($("workers-unknown"), !items);
    setVisible($("workers-none"), items?.length === 0);
    setVisible($("workers-scroll"), workers.length > 0);
    const more = workers.length > WORKERS_MAX ? `, ${WORKERS_MAX} of them shown` : "";
    setText($("workers-count"), workers.length ? `${workers.length}${more}` : "");
    this.rows.update(workers, (worker) => worker.name);
  }
}

function workerRow() {
  const cells = ["Worker", "Last heartbeat", "Holds", "Fetches", "Jobs"].map((label, index) => {
    const cell = element(index ? "td" : "th", index > 2 ? "number" : "");
    cell.dataset.label = label;
    return cell;
  });
  cells[0].scope = "row";
  const name = element("span", "worker-name");
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
      setText(since, worker.started ? `since ${time(worker.started)}` : "");
      setAttr(dot, "data-beat", heartbeatState(worker.last_heartbeat));
      setText(heartbeat, heartbeatText(worker.last_heartbeat));
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
  constructor(clock, actions) {
    this.clock = clock;
    this.figures = new StatList($("cache-figures"));
    this.degraded = new KeyedRows($("degraded"), () => degradedRow(clock, actions), KEYS_MAX);
    this.coverage = new KeyedRows($("coverage"), coverageRow, KEYS_MAX);
  }

  update(cache) {
    const used = Boolean(cache) && (cache.entries > 0 || lastMinute(cache) > 0);
    setVisible($("cache"), used);
    setVisible($("cache-none"), Boolean(cache) && !used);
    setVisible($("cache-unknown"), !cache);
    setText($("cache-count"), used ? count(cache.entries, "answer") : "");
    if (!used) return;
    this.figures.update(cacheStats(cache));
    updateSplit(cache.minute ?? {});
    const degraded = cache.degraded ?? [];
    const coverage = cache.coverage ?? [];
    this.degraded.update(degraded, (key) => key.key);
    this.coverage.update(coverage, (key) => key.key);
    setVisible($("degraded-none"), degraded.length === 0);
    setVisible($("coverage-title"), coverage.length > 0);
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

function degradedRow(clock, actions) {
  const key = element("code");
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
      setText(when, left > 0 ? `retried in ${duration(left)}` : "about to be retried");
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
  constructor(actions) {
    this.rows = new KeyedRows($("jobs"), () => jobRow(actions), JOBS_MAX);
  }

  update(jobs) {
    const items = jobs ?? [];
    setVisible($("jobs-unknown"), !jobs);
    setVisible($("jobs-none"), jobs?.length === 0);
    setVisible($("jobs-scroll"), items.length > 0);
    const running = items.filter((job) => job.status === "running").length;
    setText($("jobs-count"), items.length ? `${running} running` : "");
    this.rows.update(items, (job) => job.id);
  }
}

function jobRow(actions) {
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
      setText(status, `${job.status}${job.worker && job.status === "running" ? ` on ${job.worker}` : ""}`);
      setText(what, jobText(job));
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

function jobText(job) {
  const ended = job.succeeded + job.failed;
  const share = job.total ? ended / job.total : 1;
  const bad = job.failed ? `, ${number(job.failed)} failed` : "";
  const done = percent(Math.floor(share * 100) / 100);
  return `${number(ended)} of ${number(job.total)} done (${done})${bad}, since ${time(job.created_at)}`;
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
    this.rows = new KeyedRows($("events"), () => eventRow(), EVENTS_MAX);
    this.clock = clock;
  }

  update(events) {
    const items = events ?? [];
    setVisible($("events-unknown"), !events);
    setVisible($("events-none"), events?.length === 0);
    setVisible($("events-scroll"), items.length > 0);
    this.rows.update(items, (event) => `${event.at} ${event.worker} ${event.kind} ${event.source}`);
  }
}

const SEVERITIES = { info: "info", warning: "warn", error: "fail" };

function eventRow() {
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
      setText(when, time(event.at));
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
