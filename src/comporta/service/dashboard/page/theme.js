// Before anything is drawn: a page that is light for an instant and dark thereafter hurts at night.
// So this is a plain script in the head, not a module, and knows nothing but the choice.
(() => {
  const KEY = "comporta-theme";
  const root = document.documentElement;

  function kept() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // a browser that keeps nothing for this page
    }
  }

  function apply(choice) {
    if (choice === "light" || choice === "dark") root.dataset.theme = choice;
    else delete root.dataset.theme;
  }

  function shown() {
    const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    return root.dataset.theme ?? (dark ? "dark" : "light");
  }

  function name(button) {
    const other = shown() === "dark" ? "light" : "dark";
    button.setAttribute("aria-label", `Switch to the ${other} colours`);
    button.title = `Switch to the ${other} colours`;
  }

  function choose(button) {
    const choice = shown() === "dark" ? "light" : "dark";
    apply(choice);
    name(button);
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // then it is for this visit
    }
  }

  apply(kept());
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    if (!button) return;
    name(button);
    button.addEventListener("click", () => choose(button));
  });
})();
