// The dialog of the page: a confirmation with at most one input, and the error if the action fails.

import { $, setText, setVisible } from "./dom.js";
import { sentence } from "./words.js";

export class PromptDialog {
  constructor() {
    this.dialog = $("ask");
    this.prompt = null;
    $("ask-no").addEventListener("click", () => this.close());
    $("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    // Clear the input: it may have been a token.
    this.dialog.addEventListener("close", () => ($("ask-input").value = ""));
  }

  // `prompt` has title, text, verb, act(input), and optionally field with label, type, value, hint, min, max and
  // required.
  open(prompt) {
    this.prompt = prompt;
    setText($("ask-title"), prompt.title);
    setText($("ask-text"), prompt.text);
    setText($("ask-yes"), prompt.verb);
    setText($("ask-said"), "");
    this.setField(prompt.field);
    this.setBusy(false);
    this.dialog.showModal();
    if (prompt.field) $("ask-input").focus();
  }

  setField(field) {
    const input = $("ask-input");
    setVisible($("ask-field"), Boolean(field));
    const { label = "", type = "text", value = "", hint = "", min = "", max = "" } = field ?? {};
    setText($("ask-label"), label);
    setText($("ask-hint"), hint);
    input.type = type;
    input.value = value;
    input.min = min;
    input.max = max;
    input.maxLength = field?.maxLength ?? 500;
    input.required = Boolean(field?.required);
    input.autocomplete = "off";
  }

  setBusy(isBusy) {
    $("ask-yes").disabled = isBusy;
    this.dialog.classList.toggle("busy", isBusy);
  }

  async submit() {
    const prompt = this.prompt;
    setText($("ask-said"), "");
    this.setBusy(true);
    try {
      await prompt.act($("ask-input").value.trim());
      if (this.prompt === prompt) this.close();
    } catch (error) {
      setText($("ask-said"), sentence(error.message));
    } finally {
      this.setBusy(false);
    }
  }

  close() {
    this.prompt = null;
    this.dialog.close();
  }
}
