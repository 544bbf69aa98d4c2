// The service's clock. A browser's clock may be wrong by minutes, so the page takes the time from each document
// and counts elapsed seconds from there.

const JUMP_SECONDS = 30;

export class Clock {
  constructor() {
    this.at = null;
    this.receivedAt = 0;
  }

  // Returns false for a document that was already received: a service that repeats itself is behind.
  sync(at) {
    if (at === this.at) return false;
    this.at = at;
    this.receivedAt = performance.now();
    return true;
  }

  // Whether the service's clock was changed: earlier timestamps are then no longer comparable.
  hasJumped(at) {
    return this.at !== null && Math.abs(at - this.now()) > JUMP_SECONDS;
  }

  // Switch to another worker's clock without counting this as an update.
  adopt(at) {
    if (this.at !== null) this.at = at - this.secondsSinceUpdate();
  }

  now() {
    return this.at === null ? Date.now() / 1000 : this.at + this.secondsSinceUpdate();
  }

  // Seconds since the last new document.
  secondsSinceUpdate() {
    return this.at === null ? 0 : (performance.now() - this.receivedAt) / 1000;
  }
}
