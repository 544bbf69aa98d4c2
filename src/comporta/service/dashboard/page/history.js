// The data of the charts: an hour of slots for each series. The service sends the whole history once, and
// every document brings the latest slots.

const SECONDS_MAX = 3600;
const SERIES_MAX = 300;

export class History {
  constructor() {
    this.slotSeconds = 10;
    this.series = new Map();
  }

  replace(history) {
    this.slotSeconds = history.slot_seconds || 10;
    this.series.clear();
    this.merge(history.series ?? {});
  }

  merge(series) {
    for (const [name, columns] of Object.entries(series)) {
      if (!this.series.has(name) && this.series.size >= SERIES_MAX) continue;
      const slots = this.series.get(name) ?? [];
      for (const slot of toSlots(columns)) this.put(slots, slot);
      this.series.set(name, trimToHour(slots));
    }
  }

  // The start of a slot jitters by some milliseconds, because the service sends it as an age. Starts less than
  // half a slot apart are the same slot.
  put(slots, slot) {
    let index = slots.length;
    while (index > 0 && slots[index - 1].start > slot.start + this.slotSeconds / 2) index -= 1;
    const before = slots[index - 1];
    const same = before && Math.abs(before.start - slot.start) < this.slotSeconds / 2;
    if (same) slots[index - 1] = { ...slot, start: before.start };
    else slots.splice(index, 0, slot);
  }

  // The start of the oldest slot of any series.
  oldest(now) {
    return Math.min(now, ...[...this.series.values()].map((slots) => slots[0]?.start ?? now));
  }

  since(name, from) {
    const slots = this.series.get(name) ?? [];
    return slots.filter((slot) => slot.start + this.slotSeconds > from);
  }
}

function toSlots(columns) {
  const names = Object.keys(columns).filter((name) => name !== "starts");
  return (columns.starts ?? []).map((start, index) => {
    const slot = { start };
    for (const name of names) slot[name] = columns[name][index];
    return slot;
  });
}

function trimToHour(slots) {
  const newest = slots.at(-1)?.start ?? 0;
  const first = slots.findIndex((slot) => slot.start > newest - SECONDS_MAX - 60);
  return first > 0 ? slots.slice(first) : slots;
}
