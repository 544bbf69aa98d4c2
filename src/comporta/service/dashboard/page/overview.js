// The top of the page: the overall status in one sentence, five numbers, and whether the page is live.

import { $, StatList, setAttr, setText, setVisible } from "./dom.js";
import { count, duration, engineText, moment, number, percent, rate, sentence, statusText, time, urgency, zoneText } from "./words.js";

const BEHIND_SECONDS = 5;
const HEARTBEAT_SECONDS = 10;
const UNKNOWN = "not available";

export class Overview {
  constructor() {
    this.tiles = new StatList($("tiles"));
  }

  update(data, clock) {
    const now = clock.now();
    const text = statusText(data.status, data.reasons ?? []);
    setAttr($("status"), "data-status", data.status);
    setAttr($("status").querySelector("use"), "href", `#mark-${data.status}`);
    setText($("status-words"), text);
    setText($("version"), data.version);
    setAttr($("status"), "href", firstProblem(data.upstreams ?? []));
    setText($("footing"), footerText(data));
    this.tiles.update(tileItems(data, asOfText(data, now)));
    this.updateOutage(data, now);
    document.title = data.status === "ok" ? "comporta: all systems normal" : `⚠ ${text} · comporta`;
  }

  // What is known while the store is unreachable: since when and why, the share of this worker, how old the rest is.
  updateOutage(data, now) {
    const fallback = data.state?.fallback;
    setVisible($("outage"), Boolean(fallback));
    if (!fallback) return;
    setText($("outage-since"), `since ${moment(fallback.since, now)}, for ${duration(now - fallback.since)}`);
    setText($("outage-why"), sentence(fallback.reason));
    const share = fallback.workers > 1 ? `1/${number(fallback.workers)} of every limit` : "every limit alone";
    setText($("outage-share"), `Each worker goes on by itself. ${data.worker ?? "This worker"} uses ${share}.`);
    const known = data.as_of ? `as of ${moment(data.as_of, now)}, before the outage` : "not known to this worker";
    setText($("outage-known"), `States and tokens below are those of this worker. Counts, workers and charts are ${known}.`);
  }

  // The time of the service in the zone of the browser, which applies to all times of the page.
  updateTime(now) {
    setText($("zone"), `${time(now)} ${zoneText(now)}`);
  }

  // Show whether the data is current. A page that is behind turns grey, so that old numbers do not look current.
  updateLive(seconds, hasData) {
    const behind = hasData && seconds > BEHIND_SECONDS;
    document.body.classList.toggle("behind", behind);
    setAttr($("live"), "data-live", behind ? "behind" : hasData ? "live" : "wait");
    if (behind) setText($("live-words"), `Reconnecting… last update ${duration(seconds)} ago`);
    else setText($("live-words"), hasData ? "Live" : "Connecting…");
    return behind;
  }
}

// The address of the worst upstream, if one is not in its normal state.
function firstProblem(upstreams) {
  const [worst] = [...upstreams].sort((one, other) => urgency(other) - urgency(one));
  return worst && urgency(worst) > 1 ? `#upstream/${worst.name}` : "#main";
}

function asOfText(data, now) {
  if (data.as_of === null || data.as_of === undefined) return "";
  return data.as_of ? `as of ${moment(data.as_of, now)}` : "not known";
}

function tileItems(data, asOf) {
  const minutes = (data.upstreams ?? []).map((card) => card.minute).filter((minute) => minute?.calls >= 0);
  const sum = (name) => (minutes.length ? minutes.reduce((all, minute) => all + (minute[name] ?? 0), 0) : null);
  const alive = data.workers?.filter((worker) => worker.last_heartbeat < HEARTBEAT_SECONDS).length;
  const running = data.jobs?.filter((job) => job.status === "running").length;
  const sent = minutes.length ? sum("calls") - sum("open") - sum("limited") : null;
  return [
    { name: "Workers alive", value: number(alive), note: asOf || "sharing limits and breakers" },
    {
      name: "Calls to upstreams",
      value: rate(sent === null ? null : sent / 60),
      note: asOf || (sent === null ? UNKNOWN : `${count(sum("ok"), "success", "successes")} in the last minute`),
    },
    { name: "Calls avoided", value: number(sum("open")), note: asOf || "not sent to a failing upstream" },
    { name: "Served from the cache", value: percent(cacheShare(data.cache)), note: staleNote(data.cache) },
    { name: "Batch jobs running", value: number(running), note: jobsNote(data.jobs) },
  ];
}

// The share of answers, fresh or stale, that needed no upstream: of the last minute, if there were any.
function cacheShare(cache) {
  if (!cache) return null;
  const { hits = 0, stale = 0, misses = 0 } = cache.minute ?? {};
  const all = hits + stale + misses;
  if (all > 0) return (hits + stale) / all;
  return (cache.hit_rate ?? 0) + (cache.stale_served_rate ?? 0);
}

function staleNote(cache) {
  if (!cache) return UNKNOWN;
  const stale = cache.minute?.stale ?? 0;
  return stale ? `${number(stale)} stale in the last minute` : count(cache.entries ?? 0, "answer") + " cached";
}

function jobsNote(jobs) {
  return jobs ? `${count(jobs.length, "recent job")}` : UNKNOWN;
}

function footerText(data) {
  const state = data.state ?? {};
  const database = data.database ?? {};
  const fallback = state.fallback ? ", unreachable: each worker applies its local share" : "";
  const parts = [`Store: ${engineText(state.engine)}${fallback}`];
  const trouble = database.status && database.status !== "ok" ? `, ${database.reason || database.status}` : "";
  if (database.engine) parts.push(`Database: ${database.engine}${trouble}`);
  if (!state.fallback) parts.push("Every worker shows the whole fleet");
  return parts.join(" · ");
}
