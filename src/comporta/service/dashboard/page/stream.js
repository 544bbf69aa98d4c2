// The line to the service. The browser itself reconnects when a connection is lost; what it does not do is
// done here: ask why it was refused, try again after a refusal, and give up a line on which nothing comes.

const SILENCE_MAX_SECONDS = 15;
const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 5000;
const ADDRESS = "/v1/dashboard/stream";

export class Stream {
  // `on` has history(told), document(told) and refused(): whoever asks has no right to see this.
  constructor(on) {
    this.on = on;
    this.source = null;
    this.heard = 0;
    this.retryMs = RETRY_FIRST_MS;
    this.timer = null;
  }

  open() {
    this.close();
    this.heard = performance.now();
    const source = new EventSource(ADDRESS);
    source.addEventListener("history", (event) => this.take(this.on.history, event));
    source.addEventListener("document", (event) => this.take(this.on.document, event));
    source.addEventListener("end", () => this.again()); // this worker leaves, another one takes over
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) this.ask();
    });
    this.source = source;
  }

  close() {
    clearTimeout(this.timer);
    this.timer = null;
    this.source?.close();
    this.source = null;
  }

  // To be called now and then: a connection may be dead without anybody having said so.
  check() {
    const silent = (performance.now() - this.heard) / 1000;
    if (this.source && silent > SILENCE_MAX_SECONDS) this.open();
  }

  take(handler, event) {
    this.heard = performance.now();
    this.retryMs = RETRY_FIRST_MS;
    handler(JSON.parse(event.data));
  }

  // A stream that was refused does not say how; a plain question does.
  async ask() {
    this.close();
    try {
      const reply = await fetch("/v1/dashboard", { cache: "no-store" });
      if (reply.status === 401) {
        this.on.refused();
        return;
      }
    } catch {
      // nobody is there: they may come back
    }
    this.again();
  }

  again() {
    this.close();
    // Not all pages at the same instant: a service that just came back has enough to do.
    const waitMs = this.retryMs * (0.5 + Math.random());
    this.retryMs = Math.min(this.retryMs * 2, RETRY_MAX_MS);
    this.timer = setTimeout(() => this.open(), waitMs);
  }
}
