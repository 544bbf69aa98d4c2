// The service's time on this page. Browsers' clocks are wrong by minutes: each document says what time it is
// there, and from then on only seconds are counted, which every machine can.

const JUMP_SECONDS = 30;

export class Clock {
  constructor() {
    this.at = null;
    this.heard = 0;
  }

  // False for a document that was there before: a service that stands still is behind, however often it says
  // so.
  set(at) {
    if (at === this.at) return false;
    this.at = at;
    this.heard = performance.now();
    return true;
  }

  // Whether the service's clock was set meanwhile: then moments from before are other moments now.
  jumps(at) {
    return this.at !== null && Math.abs(at - this.now()) > JUMP_SECONDS;
  }

  // Go by another worker's clock from now on; that nothing new was heard remains so.
  follow(at) {
    if (this.at !== null) this.at = at - this.silence();
  }

  now() {
    return this.at === null ? Date.now() / 1000 : this.at + this.silence();
  }

  // How many seconds nothing new was heard.
  silence() {
    return this.at === null ? 0 : (performance.now() - this.heard) / 1000;
  }
}
