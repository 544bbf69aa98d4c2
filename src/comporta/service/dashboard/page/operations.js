// The operations as values: the confirmation, the request, and the message afterwards. `actions` sends them.

import { hasOverride, overrides } from "./words.js";

export class RequestError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

const REASON_FIELD = { label: "Reason (shown in the audit log)", maxLength: 200 };

// All operations on an upstream; `card()` returns its current state, `applies` decides whether one is shown.
export function upstreamOperations(actions, name, card) {
  const path = encodeURIComponent(name);
  return [
    ...breakerOperations(actions, name, `/v1/admin/breakers/${path}`),
    ...pauseOperations(actions, name, `/v1/admin/upstreams/${path}`),
    ...limitOperations(actions, name, `/v1/admin/limits/${path}`, card),
  ];
}

function breakerOperations(actions, name, path) {
  const applies = (card) => card.phase !== null;
  return [
    {
      label: "Hold open",
      applies: (card) => card.phase !== null && card.forced !== "open",
      danger: true,
      action: () => ({
        title: `Hold the breaker of ${name} open?`,
        text:
          `No worker of the fleet calls ${name} until you close or reset the breaker. ` +
          "Cached answers are still served.",
        field: REASON_FIELD,
        verb: "Hold it open",
        done: `The breaker of ${name} is held open for the whole fleet.`,
        act: (reason) => actions.send("POST", `${path}/open`, { reason }),
      }),
    },
    {
      label: "Hold closed",
      applies: (card) => card.phase !== null && card.forced !== "closed",
      danger: true,
      action: () => ({
        title: `Hold the breaker of ${name} closed?`,
        text:
          `Every worker of the fleet calls ${name}, however often it fails, ` +
          "until you open or reset the breaker.",
        field: REASON_FIELD,
        verb: "Hold it closed",
        done: `The breaker of ${name} is held closed for the whole fleet.`,
        act: (reason) => actions.send("POST", `${path}/close`, { reason }),
      }),
    },
    {
      label: "Reset breaker",
      applies,
      action: () => ({
        title: `Reset the breaker of ${name}?`,
        text:
          "For the whole fleet it is closed, has no failures and is no longer held. " +
          "If the upstream still fails, it opens again.",
        verb: "Reset it",
        done: `The breaker of ${name} was reset.`,
        act: () => actions.send("POST", `${path}/reset`),
      }),
    },
  ];
}

function pauseOperations(actions, name, path) {
  return [
    {
      label: "Pause",
      danger: true,
      action: () => ({
        title: `Pause ${name}?`,
        text:
          `No worker of the fleet calls ${name} for this many seconds; ` +
          "calls wait or are rejected.",
        field: { label: "Seconds", type: "number", value: "60", min: "1", max: "86400", required: true },
        verb: "Pause it",
        done: `${name} is paused for the whole fleet.`,
        act: (seconds) => actions.send("POST", `${path}/pause`, { seconds: Number(seconds) }),
      }),
    },
    {
      label: "Resume",
      applies: (card) => card.paused > 0,
      action: () => ({
        title: `Resume ${name}?`,
        text: "The pause ends immediately for the whole fleet, even if the upstream requested it.",
        verb: "Resume it",
        done: `Calls to ${name} resume.`,
        act: () => actions.send("POST", `${path}/resume`),
      }),
    },
  ];
}

function limitOperations(actions, name, path, card) {
  return [
    {
      label: "Change limit",
      action: () => ({
        title: `Change the limit of ${name}?`,
        text:
          "The new limit applies to all workers together until you change or revoke it. " +
          `${currentText(card())}${burstText(card())}`,
        choice: limitChoice(card().limits ?? []),
        field: {
          label: "Limit",
          value: card().limit_text,
          hint: "For example 20/s, or 100/minute burst 20",
          required: true,
          maxLength: 100,
        },
        verb: "Change it",
        done: (reply) => `The limit of ${name}: ${reply.limit_before} → ${reply.limit_after}.`,
        act: (limit, limitName) => actions.send("PUT", path + limitQuery(limitName), { limit }),
      }),
    },
    {
      label: "Revoke limit",
      applies: hasOverride,
      action: () => ({
        title: `Revoke the changed limit of ${name}?`,
        text: `The configured limit applies again to the whole fleet: ${revocationText(card())}.`,
        choice: card().limits?.length ? limitChoice(overrides(card())) : undefined,
        verb: "Revoke it",
        done: (reply) => `The limit of ${name}: ${reply.limit_before} → ${reply.limit_after}, as configured.`,
        act: (_, limitName) => actions.send("DELETE", path + limitQuery(limitName)),
      }),
    },
  ];
}

// The choice between several limits.
function limitChoice(limits) {
  if (!limits.length) return undefined;
  const textOf = Object.fromEntries(limits.map((limit) => [limit.name, limit.limit_text]));
  return { label: "Which limit", names: Object.keys(textOf), valueOf: (name) => textOf[name] };
}

function limitQuery(limitName) {
  return limitName ? `?limit_name=${encodeURIComponent(limitName)}` : "";
}

function currentText(card) {
  if (!card.limits?.length) return `It is ${card.limit_text} now${configuredText(card)}.`;
  const texts = card.limits.map((limit) => `${limit.name} ${limit.limit_text}${configuredText(limit)}`);
  return `The limits are ${texts.join("; ")}.`;
}

// The burst of a limit such as 5/s is its amount, which follows the new amount.
function burstText(card) {
  const limits = card.limits?.length ? card.limits : [card];
  return limits.some((limit) => limit.limit_text.includes(" burst ")) ? " A burst that you leave out stays as it is." : "";
}

function revocationText(card) {
  const named = (limit) => (card.limits?.length ? `${limit.name} ` : "");
  return overrides(card)
    .map((limit) => `${named(limit)}${limit.limit_text} → ${limit.configured_text}`)
    .join("; ");
}

function configuredText(limit) {
  return hasOverride(limit) ? ` (${limit.configured_text} is configured)` : "";
}

// The page has only prefixes of keys and job ids; operators may request the full ones.
export function refreshOperation(actions, { key }) {
  return {
    title: `Fetch ${key} now?`,
    text: "One worker of the fleet calls the source immediately, even though the key is in backoff.",
    verb: "Fetch it",
    done: `${key} is being fetched.`,
    act: async () => {
      const { keys } = await actions.send("GET", "/v1/admin/cache/keys?degraded=true&limit=1000");
      const match = keys.find((entry) => entry.params_hash.startsWith(key));
      if (!match) throw new RequestError(404, `${key} is no longer in backoff`);
      await actions.send("POST", `/v1/admin/cache/keys/${match.params_hash}/refresh`);
    },
  };
}

export function retryOperation(actions, { id }) {
  return {
    title: `Retry the backfill of ${id}?`,
    text:
      "One worker of the fleet continues where the backfill failed; " +
      "rows that are already in the sheet are not written twice.",
    verb: "Retry it",
    done: `The backfill of ${id} continues.`,
    act: async () => {
      const { jobs } = await actions.send("GET", "/v1/admin/jobs?limit=1000");
      const match = jobs.find((job) => job.id.startsWith(id));
      if (!match) throw new RequestError(404, `job ${id} no longer exists`);
      await actions.send("POST", `/v1/admin/backfills/${encodeURIComponent(match.id)}/retry`);
    },
  };
}
