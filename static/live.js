// What goes on, followed as long as somebody looks. A browser has six connections to one address (HTTP/1.1),
// for all its windows together: a page that nobody sees holds none, and of those that are seen a few hold one
// each while the others ask from time to time, so that the next window always loads.

import { Refusal, UNATTENDED, ask, tellLists, unattended } from "/static/core.js";
import { eventsOf as eventsOfAnswer } from "/static/stream.js";

// Connections that live pages hold at the same time, of the six that there are.
const HELD_MAX = 3;
// Between two looks without a held connection, and between two answers of a held one, in milliseconds.
const LOOK_MS = 2000;
const BREATH_MS = 100;
// How long a page waits before it tries again when the service does not answer.
const AGAIN_MS = 500;
const AGAIN_MAX_MS = 8000;
// Answers of a service that is away, starts or has too much to do. Everything else is final.
const PASSING = [0, 429, 500, 502, 503, 504];

const isPassing = (error) => error instanceof Refusal && PASSING.includes(error.status);

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

function seen(signal) {
  return new Promise((resolve) => {
    const look = () => { if (!document.hidden || signal.aborted) { document.removeEventListener("visibilitychange", look); resolve(); } };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
    look();
  });
}

// Calls `look` with whether it may hold a connection. Locks belong to the origin and end with their page.
// Browsers that have none (HTTP on a name other than localhost) never hold one.
async function inTurn(look, signal, at = 0) {
  if (!navigator.locks || at === HELD_MAX) return look(false);
  return navigator.locks.request(`live-${at}`, { ifAvailable: true }, (lock) => (lock ? look(true) : inTurn(look, signal, at + 1)));
}

// Looks again and again until `look(mayHold, signal)` gives true. When the service is away, `onLost` gets the
// refusal, and null once it is back. What is not passing is thrown.
export async function follow(look, { signal, onLost, turns = inTurn }) {
  let failures = 0;
  while (!signal.aborted) {
    await seen(signal);
    if (signal.aborted) return;
    const turn = new AbortController();
    unattended.add(turn.signal);
    const leave = () => { if (document.hidden) turn.abort(); };
    const end = () => turn.abort();
    document.addEventListener("visibilitychange", leave);
    signal.addEventListener("abort", end, { once: true });
    let wait = LOOK_MS;
    try {
      const isOver = await turns(async (mayHold) => { if (mayHold) wait = BREATH_MS; return look(mayHold, turn.signal); }, turn.signal);
      if (failures) onLost(null);
      failures = 0;
      if (isOver) return;
    } catch (error) {
      if (signal.aborted) return;
      if (error.name === "AbortError") wait = 0;
      else if (isPassing(error)) {
        onLost(error);
        wait = Math.max(Math.min(AGAIN_MS * 2 ** failures, AGAIN_MAX_MS), (error.retryAfter ?? 0) * 1000);
        failures += 1;
      } else throw error;
    } finally {
      document.removeEventListener("visibilitychange", leave);
      signal.removeEventListener("abort", end);
    }
    if (wait) await pause(wait, signal);
  }
}

// The names of events: of a prediction, of an execution, or of both.
const NAMES = ["status", "log", "output", "step", "wait", "pause", "resume"];

// The events of the run at `path` through a connection that is held, until its end: gives the record. `on` has a
// function for each event; `on.begin` is called when what comes starts from the beginning. `query` has the
// ordinary request answer at once.
export function eventsOf(path, on, signal, query = "") {
  return new Promise((resolve, reject) => {
    const events = new EventSource(`${path}/events`);
    const done = (act, value) => { events.close(); act(value); };
    let isFresh = true;
    const begun = () => { if (isFresh) on.begin?.(); isFresh = false; };
    for (const name of NAMES) {
      events.addEventListener(name, (event) => { begun(); on[name]?.(JSON.parse(event.data)); });
    }
    events.addEventListener("reset", () => { isFresh = false; on.begin?.(); });
    events.addEventListener("end", (event) => done(resolve, JSON.parse(event.data)));
    events.onopen = () => on.lost?.(null);
    events.onerror = () => {
      const away = new Refusal(0, "The connection to the service was lost.");
      // The browser comes again by itself, unless the service refused: then an ordinary request says why.
      if (events.readyState === EventSource.CLOSED) ask("GET", path + query, undefined, { signal }).then(() => done(reject, away), (error) => done(reject, error));
      else on.lost?.(away);
    };
    signal.addEventListener("abort", () => done(reject, new DOMException("nobody looks", "AbortError")), { once: true });
  });
}

// Reads again when something has happened, and once more when more has happened in the meantime: never twice at a time,
// and with a breath in between.
export function rereading(read, signal) {
  let isReading = false;
  let isStale = false;
  return async () => {
    if (isReading) { isStale = true; return; }
    isReading = true;
    do {
      isStale = false;
      // What is away comes again with the next event.
      await read().catch(() => null);
      await pause(BREATH_MS, signal);
    } while (isStale && !signal.aborted);
    isReading = false;
  };
}

// ---- Lists: what has changed in the organization ----

// One window of a browser holds the connection, and passes on to the others what it hears. Without locks (HTTP on
// a name other than localhost) each window that is seen holds its own.
const windows = new BroadcastChannel("changes");
let isMissing = true;

// A window that nobody sees reads when somebody sees it again.
windows.onmessage = (event) => { if (document.hidden) isMissing = true; else tellLists(event.data); };
document.addEventListener("visibilitychange", () => { if (!document.hidden && isMissing) { isMissing = false; tellLists(); } });

async function hold(signal) {
  const answer = await fetch("/events", { headers: UNATTENDED, signal, cache: "no-store" })
    .catch((error) => { throw error.name === "AbortError" ? error : new Refusal(0, "The connection to the service was lost."); });
  if (!answer.ok) throw new Refusal(answer.status, "Changes cannot be followed.", { retryAfter: Number(answer.headers.get("retry-after")) || null });
  // Of what has changed before, nothing comes.
  isMissing = false;
  tellLists();
  windows.postMessage(null);
  try {
    for await (const { data } of eventsOfAnswer(answer)) {
      const { topics, retry_after: retryAfter } = JSON.parse(data);
      // A newer browser of the same member has taken the place. The other windows of this one do not take it back
      // at once: the turn is kept until it is time, or until nobody sees this window.
      if (!topics) { isMissing = true; await pause(retryAfter * 1000, signal); return; }
      windows.postMessage(topics);
      tellLists(topics);
    }
  } catch (error) {
    throw error.name === "AbortError" || error instanceof Refusal ? error : new Refusal(0, "The connection to the service was lost.");
  } finally { isMissing = true; }
}

const alone = (look, signal) => (navigator.locks ? navigator.locks.request("changes", { signal }, () => look(true)) : look(true));

// Follows what changes in the organization. When the session has ended, it ends: the next request asks for a log-in.
export const followChanges = (signal) => follow((_mayHold, turn) => hold(turn), { signal, onLost: () => null, turns: alone }).catch(() => null);
