// Puts the page together: what comes down the stream is noted at once and drawn when the browser is ready
// for it, once, however much came; in a tab nobody looks at nothing is drawn at all.

import { Actions } from "./actions.js";
import { Announcer } from "./announcer.js";
import { Cards } from "./cards.js";
import { Clock } from "./clock.js";
import { $, show } from "./dom.js";
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
let wanted = false;

const stream = new Stream({
  history(told) {
    if (told.at) clock.follow(told.at);
    history.replace(told);
    want();
  },
  document(told) {
    const jumped = clock.jumps(told.at);
    if (!clock.set(told.at)) return;
    latest = told;
    if (jumped) return stream.open(); // the past is told anew, by the clock of now
    history.merge(told.recent ?? {});
    want();
  },
  refused() {
    location.replace("/"); // the service shows the page to sign in there
  },
});

function want() {
  if (wanted || document.hidden) return;
  wanted = true;
  requestAnimationFrame(draw);
}

// Each part by itself: one that cannot be drawn must not leave the others standing as if nothing happened.
const parts = [
  () => overview.update(latest),
  () => story.update(latest.story, latest.demo),
  () => actions.update(latest.admin),
  () => cards.update(latest.upstreams ?? []),
  () => workers.update(latest.workers),
  () => cache.update(latest.cache),
  () => jobs.update(latest.jobs),
  () => events.update(latest.events),
  () => announcer.update(latest.upstreams ?? [], clock.now()),
  live,
];

function draw() {
  wanted = false;
  if (!latest) return;
  document.body.classList.remove("waiting");
  for (const part of parts) {
    try {
      part();
    } catch (error) {
      console.error(error);
    }
  }
}

function live() {
  announcer.live(overview.live(clock.silence(), latest !== null));
}

function tick() {
  stream.check();
  if (document.hidden) return;
  live();
  cards.tick();
  cache.tick();
}

function offerToSignOut() {
  try {
    show($("signout"), localStorage.getItem("comporta-signed-in") === "yes");
    $("signout").addEventListener("submit", () => localStorage.removeItem("comporta-signed-in"));
  } catch {
    // a browser that keeps nothing for this page
  }
}

$("ranges").addEventListener("change", (event) => {
  cards.range = Number(event.target.value);
  cards.draw();
});
document.addEventListener("visibilitychange", want);
window.addEventListener("pagehide", () => stream.close());
window.addEventListener("pageshow", (event) => event.persisted && stream.open());

offerToSignOut();
setInterval(tick, TICK_MS);
stream.open();
