// Everything the page says in words. Pure: numbers and values in, text out; no clock, no document.

const PHASES = {
  closed: { word: "Closed", meaning: "Calls pass." },
  "half-open": { word: "Half-open", meaning: "A few calls try whether it answers again." },
  open: { word: "Open", meaning: "Calls are refused at once: the upstream is left in peace." },
  none: { word: "No breaker", meaning: "Only the limit holds here." },
};

const MODES = {
  ok: { verb: "Mend", is: "answers as it should" },
  slow: { verb: "Slow down", is: "answers slowly" },
  flaky: { verb: "Make flaky", is: "fails every second call" },
  "rate-limited": { verb: "Rate-limit", is: "refuses everybody with 429" },
  dead: { verb: "Kill", is: "hangs up on everybody" },
};

const ENGINES = {
  memory: "memory of this process",
  shared: "shared memory of this machine",
  redis: "Redis",
};

export function phaseOf(card) {
  return PHASES[card.phase] ? card.phase : "none";
}

export function phaseWords(card) {
  const { word, meaning } = PHASES[phaseOf(card)];
  if (card.forced) {
    const how = card.forced === "open" ? "no call passes" : "every call passes";
    return { word, meaning: `Held ${card.forced} by hand: ${how} until it is reset.` };
  }
  if (card.phase === "half-open" && card.share > 0) {
    return { word, meaning: `Closing step by step: ${percent(card.share)} of the calls pass.` };
  }
  if (card.phase !== "open" && card.paused > 0) return { word, meaning: "Paused: calls wait for their turn." };
  return { word, meaning };
}

// Why it is so, and until when, by the clock of whoever reads.
export function whyWords(card, now) {
  const why = sentence(causeOf(card));
  if (card.phase === "open" && card.until > now) return `Until ${time(card.until)}. ${why}`.trim();
  if (card.phase === "open" && card.until) return `The next call tries whether it answers again. ${why}`.trim();
  if (card.phase === "half-open") return `${probesWords(card)} ${why}`.trim();
  if (card.phase && (card.phase !== "closed" || card.forced)) return why || "Nobody said why.";
  if (card.paused > 0) return "It asked for a pause, or an operator did: nobody calls it until then.";
  if (card.limit < card.original * 0.995) {
    return `The upstream refused calls: the fleet goes at ${rate(card.limit)} and tries more by and by.`;
  }
  if (isChanged(card)) return `An operator set the limit to ${rate(card.original)}, until it is revoked.`;
  if (card.failures > 0) return `${count(card.failures, "failure")} in a row lately${opensWords(card)}.`;
  return card.phase ? "Nothing failed lately." : "";
}

// Whether the limit is an operator's, and not that of the configuration.
export function isChanged(card) {
  return (card.configured ?? card.original) !== card.original;
}

// What is written down as the cause is the last failure; that there were so many belongs to it.
function causeOf(card) {
  const many = !card.forced && card.threshold && card.failures >= card.threshold;
  if (!many) return card.why;
  const row = `${count(card.failures, "failure")} in a row`;
  return card.why ? `${row}, the last: ${card.why}` : row;
}

function probesWords(card) {
  const owners = [...new Set(card.probes ?? [])];
  if (card.share > 0) return "It answered when it was tried.";
  if (owners.length === 0) return "The next call is a probe.";
  return `${count(card.probes.length, "probe")} out, held by ${joined(owners)}.`;
}

function opensWords(card) {
  return card.threshold ? `; it opens at ${card.threshold}` : "";
}

export function sentence(text) {
  const plain = (text ?? "").trim();
  if (!plain) return "";
  const ended = /[.!?…]$/.test(plain) ? plain : `${plain}.`;
  return ended[0].toUpperCase() + ended.slice(1);
}

export function modeWords(mode) {
  return MODES[mode] ?? { verb: mode, is: `is ${mode}` };
}

export function statusWords(status, reasons) {
  const told = reasons.slice(0, 3).join("; ") + (reasons.length > 3 ? `; and ${reasons.length - 3} more` : "");
  if (status === "ok") return "All is well";
  if (status === "fail") return `Out of order: ${told || "no reason given"}`;
  return told || "Something is not as it should be";
}

export function engineWords(engine) {
  return ENGINES[engine] ?? engine ?? "unknown";
}

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimmed(value / 1e6, 1)} M`;
  if (size >= 1e4) return `${trimmed(value / 1e3, 1)} k`;
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return trimmed(value, size >= 10 ? 1 : 2);
}

function trimmed(value, digits) {
  const text = value.toFixed(digits);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond > 0 && perSecond < 0.1) return `${number(perSecond * 60)}/min`;
  return `${trimmed(perSecond, perSecond >= 10 ? 1 : 2)}/s`;
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

// How long a wait was: small ones count.
export function wait(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds <= 0) return "0";
  if (seconds < 0.0995) return `${trimmed(seconds * 1000, seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  return `${trimmed(seconds, seconds < 10 ? 1 : 0)} s`;
}

// How long something has been or will be: whole seconds are enough.
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} min`;
  return count(Math.floor(whole / 86400), "day");
}

// On the face of a clock that counts down.
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

export function ago(seconds) {
  return seconds < 1 ? "now" : `${duration(seconds)} ago`;
}

export function joined(words) {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

function pad(value) {
  return String(value).padStart(2, "0");
}
