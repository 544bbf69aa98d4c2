// What an operator may do. The admin token is kept in a variable of this module and nowhere else; every
// action asks once, and says what it will do to the whole fleet, before it is sent.

import { $, element, say, show } from "./dom.js";
import { Ask } from "./ask.js";
import { backfillFailed } from "./tables.js";
import { rate } from "./words.js";

const TOAST_MS = 6000;

class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export class Actions {
  constructor() {
    this.token = null;
    this.ask = new Ask();
    this.toastTimer = null;
    this.followers = new Set();
    $("operate").addEventListener("click", () => this.operate());
    $("stop-operating").addEventListener("click", () => this.stop());
  }

  // Without an admin token in its configuration the service lets nobody operate: then nobody is asked.
  update(possible) {
    show($("operate"), Boolean(possible) && this.token === null);
    show($("operating"), this.token !== null);
    document.body.classList.toggle("operating", this.token !== null);
  }

  operate() {
    this.ask.open({
      title: "Operate the fleet",
      text: "With the admin token you can hold, close and reset breakers, pause upstreams and change limits, for all workers at once. It stays in this page until you leave it.",
      field: { label: "Admin token", type: "password", required: true },
      verb: "Operate",
      act: (token) => this.start(token),
    });
  }

  async start(token) {
    try {
      await this.send("GET", "/v1/admin/whoami", undefined, token);
    } catch (error) {
      if (error.status === 401) throw new Refused(401, "that is not the admin token of this service");
      throw error;
    }
    this.token = token;
    this.update(true);
    $("main").focus(); // the button that was pressed is gone, and the new ones are there
    this.told("You are operating now: each upstream has its buttons.");
  }

  stop() {
    this.token = null;
    this.update(true);
    $("operate").focus();
  }

  async send(method, path, body, token = this.token) {
    const headers = { authorization: `Bearer ${token}` };
    if (body !== undefined) headers["content-type"] = "application/json";
    const reply = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
    });
    if (reply.ok) return reply.status === 204 ? null : reply.json();
    throw new Refused(reply.status, await detailOf(reply));
  }

  // Ask once, do it, and say what came of it.
  confirm(action) {
    this.ask.open({
      ...action,
      act: async (given) => {
        try {
          await action.act(given);
        } catch (error) {
          if (error.status === 401) this.token = null;
          throw error;
        }
        this.told(action.done);
      },
    });
  }

  told(words) {
    say($("toast"), words);
    $("toast").classList.add("shown");
    clearTimeout(this.toastTimer);
    this.toastTimer = setTimeout(() => $("toast").classList.remove("shown"), TOAST_MS);
  }

  forUpstream(parent, name) {
    let card = null;
    parent.setAttribute("aria-label", `Operate ${name}`);
    const made = upstreamActions(this, name, () => card);
    const buttons = made.map(({ words, action }) => this.button(words, () => this.confirm(action())));
    parent.append(...buttons);
    return {
      update: (now) => {
        card = now;
        show(parent, this.token !== null);
        made.forEach(({ wanted }, index) => show(buttons[index], wanted ? wanted(now) : true));
      },
    };
  }

  forKey() {
    let key = null;
    const node = this.button("Fetch it now", () => this.confirm(refresh(this, key)));
    return this.following(node, (now) => (key = now), () => true);
  }

  forBackfill() {
    let job = null;
    const node = this.button("Retry the backfill", () => this.confirm(retry(this, job)));
    return this.following(node, (now) => (job = now), backfillFailed);
  }

  following(node, note, wanted) {
    return {
      node,
      update: (now) => {
        note(now);
        show(node, this.token !== null && wanted(now));
      },
    };
  }

  button(words, act) {
    const made = element("button", "small", words);
    made.type = "button";
    made.addEventListener("click", act);
    return made;
  }
}

function upstreamActions(actions, name, card) {
  const path = encodeURIComponent(name);
  const breaker = `/v1/admin/breakers/${path}`;
  const limit = `/v1/admin/limits/${path}`;
  const upstream = `/v1/admin/upstreams/${path}`;
  const why = { label: "Why (for those who wonder later)", maxLength: 200 };
  const has = (now) => now.phase !== null;
  return [
    {
      words: "Hold open",
      wanted: has,
      action: () => ({
        title: `Hold ${name} open?`,
        text: `No worker of the fleet calls ${name} from now on, until somebody closes or resets the breaker. What is kept in the cache is still served.`,
        field: why,
        verb: "Hold it open",
        done: `${name} is held open for the whole fleet.`,
        act: (given) => actions.send("POST", `${breaker}/open`, { why: given }),
      }),
    },
    {
      words: "Hold closed",
      wanted: has,
      action: () => ({
        title: `Hold ${name} closed?`,
        text: `Every worker of the fleet calls ${name} from now on, however often it fails, until somebody opens or resets the breaker.`,
        field: why,
        verb: "Hold it closed",
        done: `${name} is held closed for the whole fleet.`,
        act: (given) => actions.send("POST", `${breaker}/close`, { why: given }),
      }),
    },
    {
      words: "Reset the breaker",
      wanted: has,
      action: () => ({
        title: `Reset the breaker of ${name}?`,
        text: "It begins anew for the whole fleet: closed, no failures counted, nothing held by hand. If the upstream still fails it opens again by itself.",
        verb: "Reset it",
        done: `The breaker of ${name} begins anew.`,
        act: () => actions.send("POST", `${breaker}/reset`),
      }),
    },
    {
      words: "Pause",
      action: () => ({
        title: `Pause ${name}?`,
        text: `No worker of the fleet calls ${name} for so many seconds; calls wait for their turn or are turned away.`,
        field: { label: "Seconds", type: "number", value: "60", min: "1", max: "86400", required: true },
        verb: "Pause it",
        done: `${name} is paused for the whole fleet.`,
        act: (given) => actions.send("POST", `${upstream}/pause`, { seconds: Number(given) }),
      }),
    },
    {
      words: "Resume",
      wanted: (now) => now.paused > 0,
      action: () => ({
        title: `Resume ${name}?`,
        text: "The pause ends at once for the whole fleet, also one that the upstream itself asked for.",
        verb: "Resume it",
        done: `${name} may be called again.`,
        act: () => actions.send("POST", `${upstream}/resume`),
      }),
    },
    {
      words: "Change the limit",
      action: () => ({
        title: `Change the limit of ${name}?`,
        text: `All workers together keep to the new limit at once, until it is changed again or revoked. Now it is ${rate(card().limit)}.`,
        field: { label: "Limit", value: rate(card().original), hint: "20/s, or 100/minute burst 20", required: true, maxLength: 100 },
        verb: "Change it",
        done: `${name} has a new limit.`,
        act: (given) => actions.send("PUT", limit, { limit: given }),
      }),
    },
    {
      words: "Revoke the limit",
      action: () => ({
        title: `Revoke the changed limit of ${name}?`,
        text: "The limit is again what the configuration says, for the whole fleet.",
        verb: "Revoke it",
        done: `${name} has the limit of the configuration.`,
        act: () => actions.send("DELETE", limit),
      }),
    },
  ];
}

// The page knows keys and jobs by the first letters only: whoever operates may know the rest.
function refresh(actions, { key }) {
  return {
    title: `Fetch ${key} now?`,
    text: "The next worker that looks for what is due asks the source again, whatever failed before.",
    verb: "Fetch it",
    done: `${key} will be fetched by the next worker that looks.`,
    act: async () => {
      const { keys } = await actions.send("GET", "/v1/admin/cache/keys?degraded=true&limit=1000");
      const found = keys.find((one) => one.params_hash.startsWith(key));
      if (!found) throw new Refused(404, `${key} is not in trouble any more`);
      await actions.send("POST", `/v1/admin/cache/keys/${found.params_hash}/refresh`);
    },
  };
}

function retry(actions, { id }) {
  return {
    title: `Retry the backfill of ${id}?`,
    text: "One worker of the fleet begins again where it ended; rows that are in the sheet are not written twice.",
    verb: "Retry it",
    done: `The backfill of ${id} goes on.`,
    act: async () => {
      const { jobs } = await actions.send("GET", "/v1/admin/jobs");
      const found = jobs.map((job) => job.job_id ?? job.id).find((one) => one.startsWith(id));
      if (!found) throw new Refused(404, `there is no job ${id} any more`);
      await actions.send("POST", `/v1/admin/backfills/${encodeURIComponent(found)}/retry`);
    },
  };
}

async function detailOf(reply) {
  try {
    const problem = await reply.json();
    return problem.detail || problem.title || `the service answered ${reply.status}`;
  } catch {
    return `the service answered ${reply.status}`;
  }
}
