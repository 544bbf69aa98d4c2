// What can be done, as values: what is asked before, what is sent, and what is said afterwards. `actions` sends.

import { rate } from "./words.js";

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

const WHY = { label: "Why (for those who wonder later)", maxLength: 200 };

// All that can be done to an upstream; `card()` is how it stands now, `wanted` says when it makes sense.
export function onUpstream(actions, name, card) {
  const path = encodeURIComponent(name);
  return [
    ...onBreaker(actions, name, `/v1/admin/breakers/${path}`),
    ...onPause(actions, name, `/v1/admin/upstreams/${path}`),
    ...onLimit(actions, name, `/v1/admin/limits/${path}`, card),
  ];
}

function onBreaker(actions, name, path) {
  const wanted = (card) => card.phase !== null;
  return [
    {
      words: "Hold open",
      wanted,
      action: () => ({
        title: `Hold ${name} open?`,
        text:
          `No worker of the fleet calls ${name} from now on, until somebody closes or resets the breaker. ` +
          "What is kept in the cache is still served.",
        field: WHY,
        verb: "Hold it open",
        done: `${name} is held open for the whole fleet.`,
        act: (why) => actions.send("POST", `${path}/open`, { why }),
      }),
    },
    {
      words: "Hold closed",
      wanted,
      action: () => ({
        title: `Hold ${name} closed?`,
        text:
          `Every worker of the fleet calls ${name} from now on, however often it fails, ` +
          "until somebody opens or resets the breaker.",
        field: WHY,
        verb: "Hold it closed",
        done: `${name} is held closed for the whole fleet.`,
        act: (why) => actions.send("POST", `${path}/close`, { why }),
      }),
    },
    {
      words: "Reset the breaker",
      wanted,
      action: () => ({
        title: `Reset the breaker of ${name}?`,
        text:
          "It begins anew for the whole fleet: closed, no failures counted, nothing held by hand. " +
          "If the upstream still fails it opens again by itself.",
        verb: "Reset it",
        done: `The breaker of ${name} begins anew.`,
        act: () => actions.send("POST", `${path}/reset`),
      }),
    },
  ];
}

function onPause(actions, name, path) {
  return [
    {
      words: "Pause",
      action: () => ({
        title: `Pause ${name}?`,
        text:
          `No worker of the fleet calls ${name} for so many seconds; ` +
          "calls wait for their turn or are turned away.",
        field: { label: "Seconds", type: "number", value: "60", min: "1", max: "86400", required: true },
        verb: "Pause it",
        done: `${name} is paused for the whole fleet.`,
        act: (seconds) => actions.send("POST", `${path}/pause`, { seconds: Number(seconds) }),
      }),
    },
    {
      words: "Resume",
      wanted: (card) => card.paused > 0,
      action: () => ({
        title: `Resume ${name}?`,
        text: "The pause ends at once for the whole fleet, also one that the upstream itself asked for.",
        verb: "Resume it",
        done: `${name} may be called again.`,
        act: () => actions.send("POST", `${path}/resume`),
      }),
    },
  ];
}

function onLimit(actions, name, path, card) {
  return [
    {
      words: "Change the limit",
      action: () => ({
        title: `Change the limit of ${name}?`,
        text:
          "All workers together keep to the new limit at once, until it is changed again or revoked. " +
          `Now it is ${rate(card().limit)}.`,
        field: {
          label: "Limit",
          value: rate(card().original),
          hint: "20/s, or 100/minute burst 20",
          required: true,
          maxLength: 100,
        },
        verb: "Change it",
        done: `${name} has a new limit.`,
        act: (limit) => actions.send("PUT", path, { limit }),
      }),
    },
    {
      words: "Revoke the limit",
      action: () => ({
        title: `Revoke the changed limit of ${name}?`,
        text: "The limit is again what the configuration says, for the whole fleet.",
        verb: "Revoke it",
        done: `${name} has the limit of the configuration.`,
        act: () => actions.send("DELETE", path),
      }),
    },
  ];
}

// The page knows keys and jobs by their first letters only: whoever operates may know the rest.
export function refresh(actions, { key }) {
  return {
    title: `Fetch ${key} now?`,
    text: "One worker of the fleet asks the source again at once, whatever failed before.",
    verb: "Fetch it",
    done: `${key} is being fetched.`,
    act: async () => {
      const { keys } = await actions.send("GET", "/v1/admin/cache/keys?degraded=true&limit=1000");
      const found = keys.find((one) => one.params_hash.startsWith(key));
      if (!found) throw new Refused(404, `${key} is not in trouble any more`);
      await actions.send("POST", `/v1/admin/cache/keys/${found.params_hash}/refresh`);
    },
  };
}

export function retry(actions, { id }) {
  return {
    title: `Retry the backfill of ${id}?`,
    text:
      "One worker of the fleet begins again where it ended; " +
      "rows that are in the sheet are not written twice.",
    verb: "Retry it",
    done: `The backfill of ${id} goes on.`,
    act: async () => {
      const { jobs } = await actions.send("GET", "/v1/admin/jobs?limit=1000");
      const found = jobs.find((job) => job.id.startsWith(id));
      if (!found) throw new Refused(404, `there is no job ${id} any more`);
      await actions.send("POST", `/v1/admin/backfills/${encodeURIComponent(found.id)}/retry`);
    },
  };
}
