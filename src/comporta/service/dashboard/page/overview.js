// The top of the page: how all is, in one sentence and five figures, and whether what is shown is live.

import { $, Figures, attribute, say } from "./dom.js";
import { count, duration, engineWords, number, percent, rate, statusWords } from "./words.js";

const BEHIND_SECONDS = 5;
const HEARD_SECONDS = 10;
const UNKNOWN = "cannot be told now";

export class Overview {
  constructor() {
    this.tiles = new Figures($("tiles"));
  }

  update(told) {
    const words = statusWords(told.status, told.reasons ?? []);
    attribute($("status"), "data-status", told.status);
    attribute($("status").querySelector("use"), "href", `#mark-${told.status}`);
    say($("status-words"), words);
    say($("version"), told.version);
    say($("footing"), footing(told));
    this.tiles.update(tiles(told));
    document.title = told.status === "ok" ? "comporta: all is well" : `⚠ ${words} · comporta`;
  }

  // How old what is shown is. Behind, everything is greyed: figures of the past must not look like the present.
  live(silence, heardOnce) {
    const behind = heardOnce && silence > BEHIND_SECONDS;
    document.body.classList.toggle("behind", behind);
    attribute($("live"), "data-live", behind ? "behind" : heardOnce ? "live" : "wait");
    if (behind) say($("live-words"), `Reconnecting… last seen ${duration(silence)} ago`);
    else say($("live-words"), heardOnce ? "Live" : "Connecting…");
    return behind;
  }
}

function tiles(told) {
  const minutes = (told.upstreams ?? []).map((card) => card.minute).filter(Boolean);
  const sum = (name) => (minutes.length ? minutes.reduce((all, minute) => all + (minute[name] ?? 0), 0) : null);
  const alive = told.workers?.filter((worker) => worker.heard < HEARD_SECONDS).length;
  const running = told.jobs?.filter((job) => job.status === "running").length;
  const sent = minutes.length ? sum("calls") - sum("open") - sum("limited") : null;
  return [
    { name: "Workers alive", value: number(alive), note: "one limit, one breaker" },
    {
      name: "Calls to upstreams",
      value: rate(sent === null ? null : sent / 60),
      note: `${count(sum("ok"), "success", "successes")} in a minute`,
    },
    { name: "Calls spared", value: number(sum("open")), note: "not sent to a broken upstream" },
    { name: "Answered from the cache", value: percent(keptShare(told.cache)), note: staleNote(told.cache) },
    { name: "Batch jobs running", value: number(running), note: jobsNote(told.jobs) },
  ];
}

// Fresh or older: whoever got it did not wait for an upstream. Of the last minute, if anybody asked.
function keptShare(cache) {
  if (!cache) return null;
  const { hits = 0, stale = 0, misses = 0 } = cache.minute ?? {};
  const all = hits + stale + misses;
  if (all > 0) return (hits + stale) / all;
  return (cache.hit_rate ?? 0) + (cache.stale_served_rate ?? 0);
}

function staleNote(cache) {
  if (!cache) return UNKNOWN;
  const stale = cache.minute?.stale ?? 0;
  return stale ? `${number(stale)} older answers in a minute` : count(cache.entries ?? 0, "answer") + " kept";
}

function jobsNote(jobs) {
  return jobs ? `${count(jobs.length, "job")} of late` : UNKNOWN;
}

function footing(told) {
  const state = told.state ?? {};
  const database = told.database ?? {};
  const alone = state.fallback ? ", out of reach: every worker on its own" : "";
  const parts = [`State: ${engineWords(state.engine)}${alone}`];
  const trouble = database.status && database.status !== "ok" ? `, ${database.why || database.status}` : "";
  if (database.engine) parts.push(`Database: ${database.engine}${trouble}`);
  if (!state.fallback) parts.push("Any worker's page shows the whole fleet");
  return parts.join(" · ");
}
