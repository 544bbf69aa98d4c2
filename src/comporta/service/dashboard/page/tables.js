// What is below the cards: workers, the cache, batch jobs and what happened. Each list is bounded, and says
// in words when it has nothing to show.

import { $, Figures, Rows, attribute, element, mark, say, show } from "./dom.js";
import { ago, count, duration, joined, number, percent, time } from "./words.js";

const WORKERS_MAX = 64;
const KEYS_MAX = 10;
const JOBS_MAX = 20;
const EVENTS_MAX = 50;
const FRESH_SECONDS = 4;
const SILENT_SECONDS = 10;

export class Workers {
  constructor(clock) {
    this.clock = clock;
    this.rows = new Rows($("workers"), workerRow, WORKERS_MAX);
  }

  update(told) {
    const workers = told ?? [];
    show($("workers-unknown"), !told);
    show($("workers-none"), told?.length === 0);
    show($("workers-scroll"), workers.length > 0);
    const more = workers.length > WORKERS_MAX ? `, ${WORKERS_MAX} of them shown` : "";
    say($("workers-count"), workers.length ? `${workers.length}${more}` : "");
    this.rows.update(workers, (worker) => worker.name);
  }
}

function workerRow() {
  const cells = ["Worker", "Heard", "Holds", "Fetches", "Jobs"].map((label, index) => {
    const cell = element(index ? "td" : "th", index > 2 ? "number" : "");
    cell.dataset.label = label;
    return cell;
  });
  cells[0].scope = "row";
  const name = element("span", "worker-name");
  const since = element("span", "note");
  const dot = element("span", "beat");
  const heard = element("span");
  cells[0].append(name, since);
  cells[1].append(dot, heard);
  dot.setAttribute("aria-hidden", "true");
  return {
    node: element("tr", "", ...cells),
    update(worker) {
      say(name, worker.name);
      say(since, worker.started ? `since ${time(worker.started)}` : "");
      attribute(dot, "data-beat", beatOf(worker.heard));
      say(heard, beatWords(worker.heard));
      say(cells[2], holdsWords(worker));
      say(cells[3], number(worker.fetches));
      say(cells[4], number(worker.jobs));
    },
  };
}

function beatOf(heard) {
  if (heard > SILENT_SECONDS) return "silent";
  return heard > FRESH_SECONDS ? "late" : "fresh";
}

function beatWords(heard) {
  return heard > SILENT_SECONDS ? `silent for ${duration(heard)}` : ago(heard);
}

function holdsWords(worker) {
  const probes = (worker.probes ?? []).map((name) => `the probe of ${name}`);
  const permits = Object.entries(worker.permits ?? {})
    .filter(([, held]) => held > 0)
    .map(([name, held]) => `${count(held, "call")} to ${name}`);
  const leases = Object.entries(worker.leases ?? {}).map(
    ([name, held]) => `${count(held, "token")} of ${name} on lease`,
  );
  return joined([...probes, ...permits, ...leases]) || "nothing";
}

export class CachePanel {
  constructor(clock, actions) {
    this.clock = clock;
    this.figures = new Figures($("cache-figures"));
    this.degraded = new Rows($("degraded"), () => degradedRow(clock, actions), KEYS_MAX);
    this.coverage = new Rows($("coverage"), coverageRow, KEYS_MAX);
  }

  update(cache) {
    const used = Boolean(cache) && (cache.entries > 0 || lastMinute(cache) > 0);
    show($("cache"), used);
    show($("cache-none"), Boolean(cache) && !used);
    show($("cache-unknown"), !cache);
    say($("cache-count"), used ? count(cache.entries, "answer") : "");
    if (!used) return;
    this.figures.update(cacheFigures(cache));
    split(cache.minute ?? {});
    const degraded = cache.degraded ?? [];
    const coverage = cache.coverage ?? [];
    this.degraded.update(degraded, (key) => key.key);
    this.coverage.update(coverage, (key) => key.key);
    show($("degraded-none"), degraded.length === 0);
    show($("coverage-title"), coverage.length > 0);
  }

  tick() {
    for (const row of this.degraded.rows.values()) row.tick();
  }
}

function lastMinute(cache) {
  const { hits = 0, stale = 0, misses = 0 } = cache.minute ?? {};
  return hits + stale + misses;
}

function cacheFigures(cache) {
  // The keys are looked at more often than the figures: not fewer than are listed below.
  const degraded = Math.max(cache.degraded_keys_count ?? 0, cache.degraded?.length ?? 0);
  return [
    { name: "Hit rate", value: percent(cache.hit_rate) },
    { name: "Stale served", value: percent(cache.stale_served_rate) },
    { name: "Keys in trouble", value: number(degraded), tone: degraded ? "warn" : "" },
    { name: "Being fetched", value: number(cache.fetching ?? 0) },
  ];
}

// The last minute's answers: a bar of three parts, and the same in words.
function split(minute) {
  const { hits = 0, stale = 0, misses = 0 } = minute;
  const all = hits + stale + misses;
  const words = all
    ? `The last minute: ${number(hits)} fresh from what is kept, ${number(stale)} older, ${number(misses)} fetched`
    : "Nobody asked in the last minute";
  attribute($("cache-split"), "aria-label", words);
  attribute($("cache-split"), "title", words);
  const parts = $("cache-split").children;
  [hits, stale, misses].forEach((part, index) => {
    parts[index].style.flexGrow = part;
    show(parts[index], part > 0);
  });
}

function degradedRow(clock, actions) {
  const key = element("code");
  const what = element("span");
  const when = element("span", "when");
  const button = actions.forKey();
  let told = null;
  const row = {
    node: element("li", "", element("div", "row-head", key, when), element("div", "row-text", what), button.node),
    update(now) {
      told = now;
      say(key, now.key);
      const coverage = now.coverage ? ` It holds ${now.coverage}.` : "";
      say(what, `${now.why || count(now.failures, "failure")}.${coverage}`);
      button.update(now);
      row.tick();
    },
    tick() {
      const left = (told.next_retry ?? 0) - clock.now();
      say(when, left > 0 ? `tried again in ${duration(left)}` : "to be tried again");
    },
  };
  return row;
}

function coverageRow() {
  const key = element("code");
  const what = element("span");
  return {
    node: element("li", "", element("div", "row-head", key, what)),
    update(now) {
      say(key, now.key);
      const missing = (now.missing ?? []).slice(0, 27);
      say(what, `${now.of}${missing.length ? `, without ${joined(missing)}` : ""}`);
    },
  };
}

export class Jobs {
  constructor(actions) {
    this.rows = new Rows($("jobs"), () => jobRow(actions), JOBS_MAX);
  }

  update(jobs) {
    const told = jobs ?? [];
    show($("jobs-unknown"), !jobs);
    show($("jobs-none"), jobs?.length === 0);
    show($("jobs-scroll"), told.length > 0);
    const running = told.filter((job) => job.status === "running").length;
    say($("jobs-count"), told.length ? `${running} running` : "");
    this.rows.update(told, (job) => job.id);
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
      say(key, job.id);
      say(status, `${job.status}${job.worker && job.status === "running" ? ` on ${job.worker}` : ""}`);
      say(what, jobWords(job));
      const parts = [job.succeeded, job.failed, job.pending];
      [done, failed, rest].forEach((part, index) => {
        part.style.flexGrow = parts[index];
        show(part, parts[index] > 0);
      });
      attribute(bar, "aria-valuenow", job.total ? Math.floor((100 * ended) / job.total) : 0);
      attribute(bar, "aria-label", `Job ${job.id}`);
      const words = backfillWords(job.backfill);
      say(backfill, words);
      show(backfill, Boolean(words));
      button.update(job);
    },
  };
}

function jobWords(job) {
  const ended = job.succeeded + job.failed;
  const share = job.total ? ended / job.total : 1;
  const bad = job.failed ? `, ${number(job.failed)} failed` : "";
  const done = percent(Math.floor(share * 100) / 100);
  return `${number(ended)} of ${number(job.total)} done (${done})${bad}, since ${time(job.created_at)}`;
}

function backfillWords(backfill) {
  if (!backfill) return "";
  const rows = Number.isFinite(backfill.rows) ? `, ${count(backfill.rows, "row")} written` : "";
  return `Backfill of its sheet: ${backfill.status}${rows}`;
}

export function backfillFailed(job) {
  return job.backfill?.status === "failed";
}

export class Events {
  constructor(clock) {
    this.rows = new Rows($("events"), () => eventRow(), EVENTS_MAX);
    this.clock = clock;
  }

  update(events) {
    const told = events ?? [];
    show($("events-unknown"), !events);
    show($("events-none"), events?.length === 0);
    show($("events-scroll"), told.length > 0);
    this.rows.update(told, (event) => `${event.at} ${event.worker} ${event.kind} ${event.source}`);
  }
}

const SEVERITIES = { info: "info", warning: "warn", error: "fail" };

function eventRow() {
  const when = element("time");
  const source = element("strong");
  const text = element("span");
  const where = element("span", "note");
  const marks = Object.fromEntries(Object.entries(SEVERITIES).map(([name, shape]) => [name, mark(shape)]));
  const said = element("span", "unseen");
  const icon = element("span", "event-mark", ...Object.values(marks), said);
  return {
    node: element("li", "", when, icon, element("p", "", source, " ", text, " ", where)),
    update(event) {
      attribute(when, "datetime", new Date(event.at * 1000).toISOString());
      say(when, time(event.at));
      const severity = SEVERITIES[event.severity] ? event.severity : "info";
      for (const [name, node] of Object.entries(marks)) node.classList.toggle("gone", name !== severity);
      attribute(icon, "data-severity", severity);
      say(said, severity);
      say(source, event.source);
      say(text, event.text);
      say(where, event.workers > 1 ? `told by ${event.workers} workers` : event.worker);
    },
  };
}
