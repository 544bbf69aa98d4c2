// Applies what changed since the last document (`document_changes.py` of the service). Returns a new document;
// items that did not change are the same objects as before.

export function applyChanges(before, { parts, named, series, events }) {
  const after = { ...before, ...parts };
  for (const [part, changes] of Object.entries(named)) after[part] = applyToItems(before[part], changes);
  after.recent = series;
  if (events) after.events = [...events.new, ...before.events.slice(0, events.remaining)];
  return after;
}

function applyToItems(before, { names, items }) {
  const known = new Map(before.map((item) => [item.name, item]));
  const order = names ?? before.map((item) => item.name);
  return order.map((name) => (items[name] ? { ...known.get(name), ...items[name] } : known.get(name)));
}
