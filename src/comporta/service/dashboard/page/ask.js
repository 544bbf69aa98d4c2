// The one dialog of the page: a question, at most one thing to fill in, and what was answered to it.

import { $, say, show } from "./dom.js";
import { sentence } from "./words.js";

export class Ask {
  constructor() {
    this.dialog = $("ask");
    this.asked = null;
    $("ask-no").addEventListener("click", () => this.close());
    $("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.yes();
    });
    // Nothing that was typed stays in the page: it may have been a token.
    this.dialog.addEventListener("close", () => ($("ask-input").value = ""));
  }

  // `asked`: title, text, verb, act(given), and maybe field {label, type, value, hint, min, max, required}.
  open(asked) {
    this.asked = asked;
    say($("ask-title"), asked.title);
    say($("ask-text"), asked.text);
    say($("ask-yes"), asked.verb);
    say($("ask-said"), "");
    this.field(asked.field);
    this.busy(false);
    this.dialog.showModal();
    if (asked.field) $("ask-input").focus();
  }

  field(field) {
    const input = $("ask-input");
    show($("ask-field"), Boolean(field));
    const { label = "", type = "text", value = "", hint = "", min = "", max = "" } = field ?? {};
    say($("ask-label"), label);
    say($("ask-hint"), hint);
    input.type = type;
    input.value = value;
    input.min = min;
    input.max = max;
    input.maxLength = field?.maxLength ?? 500;
    input.required = Boolean(field?.required);
    input.autocomplete = "off";
  }

  busy(is) {
    $("ask-yes").disabled = is;
    this.dialog.classList.toggle("busy", is);
  }

  async yes() {
    const asked = this.asked;
    say($("ask-said"), "");
    this.busy(true);
    try {
      await asked.act($("ask-input").value.trim());
      if (this.asked === asked) this.close();
    } catch (error) {
      say($("ask-said"), sentence(error.message));
    } finally {
      this.busy(false);
    }
  }

  close() {
    this.asked = null;
    this.dialog.close();
  }
}
