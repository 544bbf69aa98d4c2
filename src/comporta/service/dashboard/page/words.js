// Formats everything the page shows as text. Pure: values in, text out; no clock and no document.

const PHASES = {
  closed: { word: "Closed", meaning: "Calls pass." },
  "half-open": { word: "Half-open", meaning: "A few calls probe whether it has recovered." },
  open: { word: "Open", meaning: "Calls are rejected immediately, so that the upstream can recover." },
  none: { word: "No breaker", meaning: "Only the limit applies." },
};

const MODES = {
  ok: { verb: "Repair", is: "answers normally" },
  slow: { verb: "Slow down", is: "answers slowly" },
  flaky: { verb: "Make flaky", is: "fails every second call" },
  "rate-limited": { verb: "Rate-limit", is: "answers every call with 429" },
  dead: { verb: "Kill", is: "drops every connection" },
};

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

const ENGINES = {
  memory: "memory of this process",
  shared: "shared memory of this machine",
  redis: "Redis",
};

export function phaseName(card) {
  return PHASES[card.phase] ? card.phase : "none";
}

export function phaseText(card) {
  const { word, meaning } = PHASES[phaseName(card)];
  if (card.forced) {
    const how = card.forced === "open" ? "no call passes" : "it does not open, however often calls fail,";
    const paused = card.paused > 0 && card.forced !== "open" ? " Paused: calls wait." : "";
    return { word: `Held ${card.forced}`, meaning: `By an operator: ${how} until it is reset.${paused}` };
  }
  const blocks = card.phase === "open" || card.phase === "half-open" ? "breaker" : card.paused > 0 && "limit";
  if (card.shadow?.includes(blocks)) {
    return { word, meaning: `Calls pass all the same: the ${blocks} is in shadow mode.` };
  }
  if (card.phase === "half-open" && card.share > 0) {
    return { word, meaning: `Closing step by step: ${percent(card.share)} of the calls pass.` };
  }
  if (card.phase !== "open" && card.paused > 0) return { word: "Paused", meaning: "Calls wait." };
  return { word, meaning };
}

// How bad the state of an upstream is: worse ones come first. An operator's decision is never normal.
export function urgency(card) {
  if (card.phase === "open") return 6;
  if (card.forced) return 5;
  if (card.phase === "half-open") return 4;
  if (card.paused > 0) return 3;
  if (card.limit < card.original * 0.995 || hasOverride(card)) return 2;
  return card.failures > 0 ? 1 : 0;
}

// The tone of a card: an operator's decision warns even if the circuit is closed.
export function toneOf(card) {
  const level = urgency(card);
  if (level === 6) return "bad";
  return level > 1 ? "warn" : "calm";
}

// Which policies refuse nothing.
export function shadowText(card) {
  return card.shadow?.length ? `Shadow mode: ${joinList(card.shadow)}` : "";
}

// The reason for the state and its end, in the local time of the reader.
export function reasonText(card, now) {
  const reason = sentence(causeText(card));
  if (card.phase === "open" && card.until > now) return `Until ${moment(card.until, now)}. ${reason}`.trim();
  if (card.phase === "open" && card.until) return `The next call probes whether it has recovered. ${reason}`.trim();
  if (card.phase === "half-open") return `${probesText(card)} ${reason}`.trim();
  if (card.forced) return `${reason || "No reason given."} ${heldText(card)}`.trim();
  if (card.phase && card.phase !== "closed") return reason || "No reason given.";
  if (card.paused > 0) return "The upstream or an operator requested a pause: no calls until it ends.";
  if (card.limit < card.original * 0.995) {
    return `The upstream refused calls: the fleet slowed down to ${rate(card.limit)} and speeds up step by step.`;
  }
  if (hasOverride(card)) return overrideText(card);
  if (card.failures > 0) return `${attemptsText(card.failures)}${thresholdText(card)}.`;
  return card.phase ? "No recent failures." : "";
}

// The limits that an operator overrides: one of several, or the card itself if it has only one.
export function overrides(card) {
  const limits = card.limits?.length ? card.limits : [card];
  return limits.filter((limit) => limit.configured_text && limit.limit_text !== limit.configured_text);
}

export function hasOverride(card) {
  return overrides(card).length > 0;
}

function overrideText(card) {
  const which = (limit) => (card.limits?.length ? `the limit ${limit.name}` : "the limit");
  const texts = overrides(card).map(
    (limit) => `${which(limit)} to ${limit.limit_text} (${limit.configured_text} is configured)`,
  );
  return `An operator set ${joinList(texts)} until it is revoked.`;
}

// Failures are counted by attempt, and a call with retries makes several.
function attemptsText(failures) {
  return `${count(failures, "failed attempt")} in a row`;
}

function heldText(card) {
  return card.forced === "closed" && card.failures > 0 ? `${attemptsText(card.failures)}.` : "";
}

// The stored cause is the last failure; add how many there were.
function causeText(card) {
  const reached = !card.forced && card.threshold && card.failures >= card.threshold;
  if (!reached) return card.reason;
  const row = attemptsText(card.failures);
  return card.reason ? `${row}, the last: ${card.reason}` : row;
}

function probesText(card) {
  const owners = [...new Set(card.probes ?? [])];
  if (card.share > 0) return "The probes succeeded.";
  if (owners.length === 0) return "The next call is a probe.";
  return `${count(card.probes.length, "probe")} in flight, held by ${joinList(owners)}.`;
}

// The callers of all workers that wait for capacity, by class, the highest first.
export function waitingText(card) {
  const classes = Object.entries(card.waiting ?? {});
  return classes.length ? `waiting: ${joinList(classes.map(([name, many]) => `${number(many)} ${name}`))}` : "";
}

function thresholdText(card) {
  return card.threshold ? `; it opens at ${card.threshold}` : "";
}

export function sentence(text) {
  const plain = (text ?? "").trim();
  if (!plain) return "";
  const ended = /[.!?…]$/.test(plain) ? plain : `${plain}.`;
  return /^\S+:\/\//.test(ended) ? ended : ended[0].toUpperCase() + ended.slice(1);
}

export function modeText(mode) {
  return MODES[mode] ?? { verb: mode, is: `is ${mode}` };
}

export function statusText(status, reasons) {
  const text = reasons.slice(0, 3).join("; ") + (reasons.length > 3 ? `; and ${reasons.length - 3} more` : "");
  if (status === "ok") return "All systems normal";
  if (status === "fail") return `Failing: ${text || "no reason given"}`;
  return text || "Degraded";
}

export function engineText(engine) {
  return ENGINES[engine] ?? engine ?? "unknown";
}

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimZeros(value / 1e6, 1)} M`;
  if (size >= 1e4) return `${trimZeros(value / 1e3, 1)} k`;
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return trimZeros(value, size >= 10 ? 1 : 2);
}

function trimZeros(value, digits) {
  const text = value.toFixed(digits);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond > 0 && perSecond < 0.1 / 60) return `${number(perSecond * 3600)}/h`;
  if (perSecond > 0 && perSecond < 0.1) return `${number(perSecond * 60)}/min`;
  return `${trimZeros(perSecond, perSecond >= 10 ? 1 : 2)}/s`;
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  const value = share * 100;
  const round = value >= 99.95 || value < 0.05 || value === Math.round(value);
  return `${round ? Math.round(value) : value.toFixed(value < 10 ? 1 : 0)} %`;
}

export function count(many, one, several = `${one}s`) {
  return `${number(many)} ${many === 1 ? one : several}`;
}

// A wait, with milliseconds for short ones.
export function wait(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds <= 0) return "0";
  if (seconds < 0.0995) return `${trimZeros(seconds * 1000, seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  return `${trimZeros(seconds, seconds < 10 ? 1 : 0)} s`;
}

// A duration in whole seconds or larger units.
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} min`;
  return count(Math.floor(whole / 86400), "day");
}

// The face of a countdown clock.
export function clockFace(seconds) {
  const whole = Math.max(0, Math.ceil(seconds));
  if (whole < 100) return String(whole);
  if (whole < 6000) return `${Math.floor(whole / 60)}:${pad(whole % 60)}`;
  return `${Math.floor(whole / 3600)} h`;
}

export function time(unix) {
  const date = new Date(unix * 1000);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map(pad).join(":");
}

// A time of day, with the date unless it is today.
export function moment(unix, now) {
  const [date, today] = [new Date(unix * 1000), new Date(now * 1000)];
  const sameDay = date.toDateString() === today.toDateString();
  return sameDay ? time(unix) : `${date.getDate()} ${MONTHS[date.getMonth()]} ${time(unix)}`;
}

// The time zone of the browser, in which the page shows all times.
export function zoneText(unix) {
  const minutes = -new Date(unix * 1000).getTimezoneOffset();
  const size = Math.abs(minutes);
  return `UTC${minutes < 0 ? "−" : "+"}${pad(Math.floor(size / 60))}:${pad(size % 60)}`;
}

export function ago(seconds) {
  return seconds < 1 ? "now" : `${duration(seconds)} ago`;
}

export function joinList(items) {
  if (items.length < 2) return items.join("");
  return `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
}

function pad(value) {
  return String(value).padStart(2, "0");
}
