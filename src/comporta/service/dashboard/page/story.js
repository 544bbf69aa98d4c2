// The demo: what is happening, where to look, and switches that break and repair the portals.

import { $, KeyedRows, element, setAttr, setText, setVisible } from "./dom.js";
import { modeText } from "./words.js";

const DOTS_MAX = 20;
const PORTALS_MAX = 20;

export class Story {
  constructor() {
    this.dots = new KeyedRows($("story-dots"), () => ({ node: element("i"), update() {} }), DOTS_MAX);
    this.portals = new KeyedRows($("demo-rows"), (portal) => new Portal(portal), PORTALS_MAX);
  }

  update(story, demo) {
    setVisible($("story"), Boolean(story || demo));
    setVisible($("story-words"), Boolean(story));
    setVisible($("demo"), Boolean(demo));
    $("story").setAttribute("aria-labelledby", story ? "story-title" : "demo-title");
    if (story) this.updateStory(story);
    if (demo) this.updatePortals(demo);
  }

  updateStory(story) {
    setText($("story-scenario"), story.scenario);
    setText($("story-count"), `step ${story.step} of ${story.of}`);
    setText($("story-title"), story.title);
    setText($("story-text"), story.text);
    setText($("story-look"), story.look);
    setVisible($("story-look").parentElement, Boolean(story.look));
    const steps = Array.from({ length: Math.min(story.of, DOTS_MAX) }, (_, index) => index + 1);
    this.dots.update(steps, (step) => step);
    for (const [step, { node }] of this.dots.rows) {
      const state = step < story.step ? "done" : step === story.step ? "now" : "to come";
      setAttr(node, "data-step", state);
    }
  }

  updatePortals(demo) {
    const portals = Object.entries(demo.modes).map(([name, mode]) => ({ name, mode, can: demo.can }));
    this.portals.update(portals, (portal) => portal.name);
  }
}

class Portal {
  constructor({ name, can }) {
    this.name = name;
    this.description = element("span", "quiet");
    this.buttons = new Map(can.map((mode) => [mode, this.button(mode)]));
    const group = element("div", "segments", ...this.buttons.values());
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", `Mode of ${name}`);
    this.node = element("div", "portal", element("strong", "", name), group, this.description);
  }

  button(mode) {
    const node = element("button", "", modeText(mode).verb);
    node.type = "button";
    node.dataset.mode = mode;
    node.addEventListener("click", () => this.choose(mode));
    return node;
  }

  update({ mode }) {
    setText(this.description, modeText(mode).is);
    setAttr(this.node, "data-mode", mode);
    for (const [key, button] of this.buttons) setAttr(button, "aria-pressed", key === mode);
  }

  async choose(mode) {
    setText($("demo-said"), "");
    try {
      const reply = await fetch(`/v1/demo/upstreams/${encodeURIComponent(this.name)}`, {
        method: "PUT",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ mode }),
      });
      if (!reply.ok) throw new Error(`the service returned status ${reply.status}`);
      this.update({ mode });
      setText($("demo-said"), `${this.name} now ${modeText(mode).is}.`);
    } catch (error) {
      setText($("demo-said"), `Could not change the mode: ${error.message}.`);
    }
  }
}
