// The connection to the service. EventSource reconnects after a lost connection by itself. This class adds the
// rest: it finds out why a stream was refused, retries after a refusal, and replaces a silent connection.

const SILENCE_MAX_SECONDS = 15;
const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 5000;
const PATH = "/v1/dashboard/stream";

export class Stream {
  // `on` has the handlers history(data), document(data), changes(data) and unauthorized().
  constructor(on) {
    this.on = on;
    this.source = null;
    this.receivedAt = 0;
    this.retryMs = RETRY_FIRST_MS;
    this.timer = null;
  }

  open() {
    this.close();
    this.receivedAt = performance.now();
    const source = new EventSource(PATH);
    source.addEventListener("history", (event) => this.dispatch(this.on.history, event));
    source.addEventListener("document", (event) => this.dispatch(this.on.document, event));
    source.addEventListener("changes", (event) => this.dispatch(this.on.changes, event));
    source.addEventListener("end", () => this.reconnect()); // this worker shuts down: use another one
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) this.checkAccess();
    });
    this.source = source;
  }

  close() {
    clearTimeout(this.timer);
    this.timer = null;
    this.source?.close();
    this.source = null;
  }

  // Call this regularly: a dead connection does not always report an error.
  check() {
    const seconds = (performance.now() - this.receivedAt) / 1000;
    if (this.source && seconds > SILENCE_MAX_SECONDS) this.open();
  }

  dispatch(handler, event) {
    this.receivedAt = performance.now();
    this.retryMs = RETRY_FIRST_MS;
    handler(JSON.parse(event.data));
  }

  // EventSource does not expose the status of a refused stream; a plain request does.
  async checkAccess() {
    this.close();
    try {
      const reply = await fetch("/v1/dashboard", { cache: "no-store" });
      if (reply.status === 401) {
        this.on.unauthorized();
        return;
      }
    } catch {
      // the service is unreachable and may recover
    }
    this.reconnect();
  }

  reconnect() {
    this.close();
    // With jitter, so that not all pages reconnect at once after a restart.
    const waitMs = this.retryMs * (0.5 + Math.random());
    this.retryMs = Math.min(this.retryMs * 2, RETRY_MAX_MS);
    this.timer = setTimeout(() => this.open(), waitMs);
  }
}
