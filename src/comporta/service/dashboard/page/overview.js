// The top of the page: the overall status in one sentence, five numbers, and whether the page is live.

import { $, StatList, setAttr, setText } from "./dom.js";
import { count, duration, engineText, number, percent, rate, statusText } from "./words.js";

const BEHIND_SECONDS = 5;
const HEARTBEAT_SECONDS = 10;
const UNKNOWN = "not available";

export class Overview {
  constructor() {
    this.tiles = new StatList($("tiles"));
  }

  update(data) {
    const text = statusText(data.status, data.reasons ?? []);
    setAttr($("status"), "data-status", data.status);
    setAttr($("status").querySelector("use"), "href", `#mark-${data.status}`);
    setText($("status-words"), text);
    setText($("version"), data.version);
    setText($("footing"), footerText(data));
    this.tiles.update(tileItems(data));
    document.title = data.status === "ok" ? "comporta: all systems normal" : `⚠ ${text} · comporta`;
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

function tileItems(data) {
  const minutes = (data.upstreams ?? []).map((card) => card.minute).filter(Boolean);
  const sum = (name) => (minutes.length ? minutes.reduce((all, minute) => all + (minute[name] ?? 0), 0) : null);
  const alive = data.workers?.filter((worker) => worker.last_heartbeat < HEARTBEAT_SECONDS).length;
  const running = data.jobs?.filter((job) => job.status === "running").length;
  const sent = minutes.length ? sum("calls") - sum("open") - sum("limited") : null;
  return [
    { name: "Workers alive", value: number(alive), note: "sharing limits and breakers" },
    {
      name: "Calls to upstreams",
      value: rate(sent === null ? null : sent / 60),
      note: `${count(sum("ok"), "success", "successes")} in the last minute`,
    },
    { name: "Calls avoided", value: number(sum("open")), note: "not sent to a failing upstream" },
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
