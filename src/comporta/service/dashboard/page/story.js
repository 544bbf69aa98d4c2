// The demonstration: what is happening and what to look at, and switches to break and mend the portals.

import { $, Rows, attribute, element, say, show } from "./dom.js";
import { modeWords } from "./words.js";

const DOTS_MAX = 20;
const PORTALS_MAX = 20;

export class Story {
  constructor() {
    this.dots = new Rows($("story-dots"), () => ({ node: element("i"), update() {} }), DOTS_MAX);
    this.portals = new Rows($("demo-rows"), (portal) => new Portal(portal), PORTALS_MAX);
  }

  update(story, demo) {
    show($("story"), Boolean(story || demo));
    show($("story-words"), Boolean(story));
    show($("demo"), Boolean(demo));
    $("story").setAttribute("aria-labelledby", story ? "story-title" : "demo-title");
    if (story) this.tell(story);
    if (demo) this.switches(demo);
  }

  tell(story) {
    say($("story-scenario"), story.scenario);
    say($("story-count"), `step ${story.step} of ${story.of}`);
    say($("story-title"), story.title);
    say($("story-text"), story.text);
    say($("story-look"), story.look);
    show($("story-look").parentElement, Boolean(story.look));
    const steps = Array.from({ length: Math.min(story.of, DOTS_MAX) }, (_, index) => index + 1);
    this.dots.update(steps, (step) => step);
    for (const [step, { node }] of this.dots.rows) {
      const place = step < story.step ? "done" : step === story.step ? "now" : "to come";
      attribute(node, "data-step", place);
    }
  }

  switches(demo) {
    const portals = Object.entries(demo.modes).map(([name, mode]) => ({ name, mode, can: demo.can }));
    this.portals.update(portals, (portal) => portal.name);
  }
}

class Portal {
  constructor({ name, can }) {
    this.name = name;
    this.words = element("span", "quiet");
    this.buttons = new Map(can.map((mode) => [mode, this.button(mode)]));
    const group = element("div", "segments", ...this.buttons.values());
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", `What ${name} does`);
    this.node = element("div", "portal", element("strong", "", name), group, this.words);
  }

  button(mode) {
    const made = element("button", "", modeWords(mode).verb);
    made.type = "button";
    made.dataset.mode = mode;
    made.addEventListener("click", () => this.choose(mode));
    return made;
  }

  update({ mode }) {
    say(this.words, modeWords(mode).is);
    attribute(this.node, "data-mode", mode);
    for (const [one, button] of this.buttons) attribute(button, "aria-pressed", one === mode);
  }

  async choose(mode) {
    say($("demo-said"), "");
    try {
      const reply = await fetch(`/v1/demo/upstreams/${encodeURIComponent(this.name)}`, {
        method: "PUT",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ mode }),
      });
      if (!reply.ok) throw new Error(`the service answered ${reply.status}`);
      this.update({ mode });
      say($("demo-said"), `${this.name} ${modeWords(mode).is} from now on.`);
    } catch (error) {
      say($("demo-said"), `That did not work: ${error.message}.`);
    }
  }
}
