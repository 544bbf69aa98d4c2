// Assembles the page. Data from the stream is stored immediately and drawn once per animation frame, however
// much arrived; a hidden tab draws nothing.

import { Actions } from "./actions.js";
import { Announcer } from "./announcer.js";
import { Cards } from "./cards.js";
import { Clock } from "./clock.js";
import { $, setVisible } from "./dom.js";
import { History } from "./history.js";
import { Overview } from "./overview.js";
import { Story } from "./story.js";
import { Stream } from "./stream.js";
import { CachePanel, Events, Jobs, Workers } from "./tables.js";

const TICK_MS = 500;

const clock = new Clock();
const history = new History();
const actions = new Actions();
const overview = new Overview();
const story = new Story();
const cards = new Cards(clock, history, actions);
const workers = new Workers(clock);
const cache = new CachePanel(clock, actions);
const jobs = new Jobs(actions);
const events = new Events(clock);
const announcer = new Announcer();

let latest = null;
let drawRequested = false;

const stream = new Stream({
  history(data) {
    if (data.at) clock.adopt(data.at);
    history.replace(data);
    requestDraw();
  },
  document(data) {
    const jumped = clock.hasJumped(data.at);
    if (!clock.sync(data.at)) return;
    latest = data;
    if (jumped) return stream.open(); // reload the history with the new clock
    history.merge(data.recent ?? {});
    requestDraw();
  },
  unauthorized() {
    location.replace("/"); // where the service shows the sign-in page
  },
});

function requestDraw() {
  if (drawRequested || document.hidden) return;
  drawRequested = true;
  requestAnimationFrame(draw);
}

// Sections are independent: one that fails to draw must not leave the others outdated.
const sections = [
  () => overview.update(latest),
  () => story.update(latest.story, latest.demo),
  () => actions.update(latest.admin),
  () => cards.update(latest.upstreams ?? []),
  () => workers.update(latest.workers),
  () => cache.update(latest.cache),
  () => jobs.update(latest.jobs),
  () => events.update(latest.events),
  () => announcer.update(latest.upstreams ?? [], clock.now()),
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
  cards.tick();
  cache.tick();
}

function showSignOut() {
  try {
    setVisible($("signout"), localStorage.getItem("comporta-signed-in") === "yes");
    $("signout").addEventListener("submit", () => localStorage.removeItem("comporta-signed-in"));
  } catch {
    // the browser stores nothing for this page
  }
}

$("ranges").addEventListener("change", (event) => {
  cards.range = Number(event.target.value);
  cards.draw();
});
document.addEventListener("visibilitychange", requestDraw);
window.addEventListener("pagehide", () => stream.close());
window.addEventListener("pageshow", (event) => event.persisted && stream.open());

showSignOut();
setInterval(tick, TICK_MS);
stream.open();
