// What the charts draw: an hour of slots for each series, first as the service remembers it, then kept up
// with the last few slots that come with every document.

const SECONDS_MAX = 3600;
const SERIES_MAX = 100;

export class History {
  constructor() {
    this.slotSeconds = 10;
    this.series = new Map();
  }

  replace(told) {
    this.slotSeconds = told.slot_seconds || 10;
    this.series.clear();
    this.merge(told.series ?? {});
  }

  merge(told) {
    for (const [name, columns] of Object.entries(told)) {
      if (!this.series.has(name) && this.series.size >= SERIES_MAX) continue;
      const slots = this.series.get(name) ?? [];
      for (const slot of slotsOf(columns)) this.put(slots, slot);
      this.series.set(name, trimmed(slots));
    }
  }

  // A slot's start is told as an age, which trembles by some milliseconds: half a slot apart is another one.
  put(slots, slot) {
    let place = slots.length;
    while (place > 0 && slots[place - 1].start > slot.start + this.slotSeconds / 2) place -= 1;
    const before = slots[place - 1];
    const same = before && Math.abs(before.start - slot.start) < this.slotSeconds / 2;
    if (same) slots[place - 1] = { ...slot, start: before.start };
    else slots.splice(place, 0, slot);
  }

  // When the oldest slot of any series began.
  oldest(now) {
    return Math.min(now, ...[...this.series.values()].map((slots) => slots[0]?.start ?? now));
  }

  since(name, from) {
    const slots = this.series.get(name) ?? [];
    return slots.filter((slot) => slot.start + this.slotSeconds > from);
  }
}

function slotsOf(columns) {
  const names = Object.keys(columns).filter((name) => name !== "starts");
  return (columns.starts ?? []).map((start, index) => {
    const slot = { start };
    for (const name of names) slot[name] = columns[name][index];
    return slot;
  });
}

function trimmed(slots) {
  const newest = slots.at(-1)?.start ?? 0;
  const first = slots.findIndex((slot) => slot.start > newest - SECONDS_MAX - 60);
  return first > 0 ? slots.slice(first) : slots;
}
