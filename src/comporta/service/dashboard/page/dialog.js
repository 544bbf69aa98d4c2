// The dialog of the page: a confirmation with at most one input, and the error if the action fails.

import { $, setText, setVisible } from "./dom.js";
import { sentence } from "./words.js";

// One rule for all dialogs: Enter confirms, Escape cancels, and `onEnd` receives the outcome, even if
// nothing changed.
export class PromptDialog {
  constructor(onEnd) {
    this.dialog = $("ask");
    this.prompt = null;
    this.outcome = null;
    $("ask-no").addEventListener("click", () => this.close());
    $("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    $("ask-select").addEventListener("change", () => this.choose());
    $("ask-select").addEventListener("keydown", (event) => event.key === "Enter" && $("ask-form").requestSubmit());
    // Clear the input: it may have been a token.
    this.dialog.addEventListener("close", () => {
      $("ask-input").value = "";
      this.prompt = null;
      onEnd(this.outcome ?? "Nothing changed.");
    });
  }

  // `prompt` has title, text, verb, act(input), which resolves to the outcome in a sentence, and optionally danger,
  // field with label, type, value, hint, min, max and required, and choice with label, names and valueOf(name), which
  // is the value of the field for a name; act gets the chosen name as well.
  open(prompt) {
    this.prompt = prompt;
    this.outcome = null;
    setText($("ask-title"), prompt.title);
    setText($("ask-text"), prompt.text);
    setText($("ask-yes"), prompt.verb);
    setText($("ask-said"), "");
    this.setField(prompt.field);
    this.setChoice(prompt.choice);
    this.setBusy(false);
    $("ask-yes").className = prompt.danger ? "danger" : "primary";
    this.dialog.showModal();
    const first = $(prompt.field ? "ask-input" : "ask-yes");
    first.focus();
    if (prompt.field?.value) first.select();
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

  setChoice(choice) {
    setVisible($("ask-choice"), Boolean(choice));
    setText($("ask-choice-label"), choice?.label);
    const options = (choice?.names ?? []).map((name) => new Option(name, name));
    $("ask-select").replaceChildren(...options);
  }

  // Another name has another value.
  choose() {
    const { choice, field } = this.prompt;
    if (field) $("ask-input").value = choice.valueOf($("ask-select").value);
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
      const outcome = await prompt.act($("ask-input").value.trim(), $("ask-select").value || null);
      if (this.prompt !== prompt) return;
      this.outcome = outcome;
      this.close();
    } catch (error) {
      setText($("ask-said"), sentence(error.message));
    } finally {
      this.setBusy(false);
    }
  }

  close() {
    this.dialog.close();
  }
}
