// The page cannot read the session cookie, so it stores a flag: the sign-out button appears only after a sign-in.

document.querySelector("form").addEventListener("submit", () => {
  try {
    localStorage.setItem("comporta-signed-in", "yes");
  } catch {
    // the browser stores nothing; its cookie ends with the session
  }
});
