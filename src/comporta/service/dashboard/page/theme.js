// Applies the theme before anything is drawn, so that a dark page never flashes light. For that it is a plain
// script in the head, not a module.
(() => {
  const KEY = "comporta-theme";
  const root = document.documentElement;

  function storedTheme() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // the browser stores nothing for this page
    }
  }

  function apply(choice) {
    if (choice === "light" || choice === "dark") root.dataset.theme = choice;
    else delete root.dataset.theme;
  }

  function activeTheme() {
    const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    return root.dataset.theme ?? (dark ? "dark" : "light");
  }

  function updateLabel(button) {
    const other = activeTheme() === "dark" ? "light" : "dark";
    button.setAttribute("aria-label", `Switch to the ${other} theme`);
    button.title = `Switch to the ${other} theme`;
  }

  function toggle(button) {
    const choice = activeTheme() === "dark" ? "light" : "dark";
    apply(choice);
    updateLabel(button);
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // the choice then lasts for this visit only
    }
  }

  apply(storedTheme());
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    if (!button) return;
    updateLabel(button);
    button.addEventListener("click", () => toggle(button));
  });
})();
