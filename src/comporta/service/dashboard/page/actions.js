// What an operator may do. The admin token is kept in a variable of this module and nowhere else; every
// action asks once, and says what it will do to the whole fleet, before it is sent.

import { $, element, say, show } from "./dom.js";
import { Ask } from "./ask.js";
import { Refused, onUpstream, refresh, retry } from "./operations.js";
import { backfillFailed } from "./tables.js";

const TOAST_MS = 6000;

export class Actions {
  constructor() {
    this.token = null;
    this.ask = new Ask();
    this.toastTimer = null;
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
      text:
        "With the admin token you can hold, close and reset breakers, pause upstreams and change limits, " +
        "for all workers at once. It stays in this page until you leave it.",
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
    const made = onUpstream(this, name, () => card);
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

async function detailOf(reply) {
  try {
    const problem = await reply.json();
    return problem.detail || problem.title || `the service answered ${reply.status}`;
  } catch {
    return `the service answered ${reply.status}`;
  }
}
