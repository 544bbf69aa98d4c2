// The cookie that lets a browser in cannot be read by the page, so it remembers by itself that there is one:
// only who signed in is offered to sign out.

document.querySelector("form").addEventListener("submit", () => {
  try {
    localStorage.setItem("comporta-signed-in", "yes");
  } catch {
    // a browser that keeps nothing: its cookie ends with it
  }
});
