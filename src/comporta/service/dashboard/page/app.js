// Assembles the page. Data from the stream is stored immediately and drawn once per animation frame, however
// much arrived; a hidden tab draws nothing.

import { Actions } from "./actions.js";
import { Announcer } from "./announcer.js";
import { Cards } from "./cards.js";
import { applyChanges } from "./changes.js";
import { Clock } from "./clock.js";
import { $, setVisible, stored } from "./dom.js";
import { History } from "./history.js";
import { Overview } from "./overview.js";
import { Story } from "./story.js";
import { Stream } from "./stream.js";
import { CachePanel, Events, Jobs, Workers } from "./tables.js";

const TICK_MS = 500;
const RANGE_KEY = "comporta-range";

const clock = new Clock();
const history = new History();
const actions = new Actions();
const overview = new Overview();
const story = new Story();
const cards = new Cards(clock, history, actions);
const events = new Events(clock);
const workers = new Workers(clock, (text) => events.show(text));
const cache = new CachePanel(clock, actions, (text) => events.show(text));
const jobs = new Jobs(clock, actions);
const announcer = new Announcer();

let latest = null;
let drawRequested = false;

const stream = new Stream({
  history(data) {
    if (data.at) clock.adopt(data.at);
    // A worker that cannot read the store, and knows nothing from before, must not erase what is known here.
    if (data.reasons?.length && !Object.keys(data.series).length) return;
    history.replace(data);
    requestDraw();
  },
  document: receive,
  changes: (changes) => receive(applyChanges(latest, changes)),
  unauthorized() {
    location.replace("/"); // where the service shows the sign-in page
  },
});

function receive(data) {
  const jumped = clock.hasJumped(data.at);
  if (!clock.sync(data.at)) return;
  latest = data;
  if (jumped) return stream.open(); // reload the history with the new clock
  history.merge(data.recent ?? {});
  requestDraw();
}

function requestDraw() {
  if (drawRequested || document.hidden) return;
  drawRequested = true;
  requestAnimationFrame(draw);
}

// Sections are independent: one that fails to draw must not leave the others outdated.
const sections = [
  () => overview.update(latest, clock),
  () => story.update(latest.story, latest.demo),
  () => actions.update(latest.admin),
  () => cards.update(latest.upstreams ?? [], { workers: latest.workers ?? [], fallback: latest.state?.fallback }),
  () => workers.update(latest.workers, latest.as_of),
  () => cache.update(latest.cache, latest.database),
  () => jobs.update(latest.jobs),
  () => events.update(latest.events),
  () => announcer.update(latest, clock.now()),
  updateLive,
];

function draw() {
  drawRequested = false;
  if (!latest) return;
  document.body.classList.remove("waiting");
  for (const section of sections) {
    try {
      section();
    } catch (error) {
      console.error(error);
    }
  }
}

function updateLive() {
  announcer.setBehind(overview.updateLive(clock.secondsSinceUpdate(), latest !== null));
}

function tick() {
  stream.check();
  if (document.hidden) return;
  updateLive();
  overview.updateTime(clock.now());
  cards.tick();
  cache.tick();
}

function showSignOut() {
  setVisible($("signout"), stored.get("comporta-signed-in") === "yes");
  $("signout").addEventListener("submit", () => stored.set("comporta-signed-in", "no"));
}

function restoreRange() {
  const input = $("ranges").querySelector(`input[value="${Number(stored.get(RANGE_KEY))}"]`);
  if (!input) return;
  input.checked = true;
  cards.range = Number(input.value);
}

$("ranges").addEventListener("change", (event) => {
  cards.range = Number(event.target.value);
  stored.set(RANGE_KEY, event.target.value);
  cards.draw();
});
document.addEventListener("visibilitychange", requestDraw);
window.addEventListener("pagehide", () => stream.close());
window.addEventListener("pageshow", (event) => event.persisted && stream.open());

showSignOut();
restoreRange();
setInterval(tick, TICK_MS);
stream.open();
