// The actions of an operator. The admin token exists only in a variable of this module. Every action asks for
// one confirmation that says what it does to the whole fleet.

import { PromptDialog } from "./dialog.js";
import { $, element, setText, setVisible } from "./dom.js";
import { RequestError, refreshOperation, retryOperation, upstreamOperations } from "./operations.js";
import { backfillFailed } from "./tables.js";

const TOAST_MS = 6000;

export class Actions {
  constructor() {
    this.token = null;
    this.dialog = new PromptDialog((outcome) => this.showToast(outcome));
    this.toastTimer = null;
    $("operate").addEventListener("click", () => this.operate());
    $("stop-operating").addEventListener("click", () => this.stop());
  }

  // Without a configured admin token there is nothing to operate, so the button is hidden.
  update(possible) {
    setVisible($("operate"), Boolean(possible) && this.token === null);
    setVisible($("operating"), this.token !== null);
    setVisible($("stop-operating"), this.token !== null);
    document.body.classList.toggle("operating", this.token !== null);
  }

  // A notice about an earlier action must not look like the outcome of this one.
  open(prompt) {
    this.hideToast();
    this.dialog.open(prompt);
  }

  operate() {
    this.open({
      title: "Operate the fleet",
      text:
        "With the admin token you can force and reset breakers, pause upstreams and change limits " +
        "for all workers. The token stays in this page until you leave it.",
      field: { label: "Admin token", type: "password", required: true },
      verb: "Operate",
      act: (token) => this.start(token),
    });
  }

  async start(token) {
    try {
      await this.send("GET", "/v1/admin/whoami", undefined, token);
    } catch (error) {
      if (error.status === 401) throw new RequestError(401, "wrong admin token");
      throw error;
    }
    this.token = token;
    this.update(true);
    $("stop-operating").focus(); // the pressed button is gone
    return "You are operating now: every upstream has buttons.";
  }

  stop() {
    this.token = null;
    this.update(true);
    $("operate").focus();
    this.showToast("You are no longer operating.");
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
    throw new RequestError(reply.status, await problemDetail(reply));
  }

  // Ask for confirmation, run the action, and show the result.
  confirm(action) {
    this.open({
      ...action,
      act: async (input, choice) => {
        try {
          const reply = await action.act(input, choice);
          return typeof action.done === "function" ? action.done(reply) : action.done;
        } catch (error) {
          if (error.status === 401) this.token = null;
          throw error;
        }
      },
    });
  }

  hideToast() {
    clearTimeout(this.toastTimer);
    setText($("toast"), "");
    $("toast").classList.remove("shown");
  }

  showToast(text) {
    setText($("toast"), text);
    $("toast").classList.add("shown");
    clearTimeout(this.toastTimer);
    this.toastTimer = setTimeout(() => $("toast").classList.remove("shown"), TOAST_MS);
  }

  forUpstream(parent, name) {
    let card = null;
    parent.setAttribute("aria-label", `Operate ${name}`);
    const operations = upstreamOperations(this, name, () => card);
    const buttons = operations.map(({ label, action, danger }) =>
      this.button(label, () => this.confirm({ danger, ...action() }), danger),
    );
    parent.append(...buttons);
    return {
      update: (item) => {
        card = item;
        setVisible(parent, this.token !== null);
        operations.forEach(({ applies }, index) => setVisible(buttons[index], applies ? applies(item) : true));
      },
    };
  }

  forKey() {
    let key = null;
    const node = this.button("Fetch now", () => this.confirm(refreshOperation(this, key)));
    return this.rowButton(node, (item) => (key = item), () => true);
  }

  forBackfill() {
    let job = null;
    const node = this.button("Retry the backfill", () => this.confirm(retryOperation(this, job)));
    return this.rowButton(node, (item) => (job = item), backfillFailed);
  }

  rowButton(node, remember, applies) {
    return {
      node,
      update: (item) => {
        remember(item);
        setVisible(node, this.token !== null && applies(item));
      },
    };
  }

  button(label, act, danger = false) {
    const node = element("button", danger ? "small danger" : "small", label);
    node.type = "button";
    node.addEventListener("click", act);
    return node;
  }
}

async function problemDetail(reply) {
  try {
    const problem = await reply.json();
    return problem.detail || problem.title || `the service returned status ${reply.status}`;
  } catch {
    return `the service returned status ${reply.status}`;
  }
}
