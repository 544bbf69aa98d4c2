// Controls without an accessible name or smaller than WCAG's 24 pixels.
() => {
  const bad = [];
  for (const node of document.querySelectorAll("button, input, a[href], [tabindex='0']")) {
    if (!node.checkVisibility({ visibilityProperty: true })) continue;
    const labels = [...(node.labels ?? [])].map((label) => label.textContent).join("");
    const by = document.getElementById(node.getAttribute("aria-labelledby") ?? "")?.textContent ?? "";
    const name = node.getAttribute("aria-label") || by || labels || node.textContent;
    if (!name.trim()) bad.push(`${node.outerHTML.slice(0, 80)} has no name`);
    const box = (node.labels?.[0] ?? node).getBoundingClientRect();
    if (box.height < 24 && box.height > 1) bad.push(`${name.trim().slice(0, 40)} is ${box.height} high`);
  }
  for (const role of ["header", "main", "footer", "h1"]) {
    if (document.querySelectorAll(role).length !== 1 && role !== "header") bad.push(`not one ${role}`);
  }
  return bad;
};
