// Live updates while a page is visible. With HTTP/1.1 a browser has six connections per address,
// shared by all its windows: hidden pages keep no connection open, a few visible pages keep one
// connection open each, and the other pages poll. A free connection thus remains for loading a new
// window.

import { Refusal, UNATTENDED, ask, connectionLost, tellLists, unattended } from "./core.js";
import { BASE } from "./location.js";
import { eventsOf as eventsOfAnswer } from "./stream.js";

// Maximum number of connections kept open by live pages, of the six available.
const HELD_MAX = 3;
// Milliseconds between two polls without an open connection, and between two responses over one.
const LOOK_MS = 2000;
const BREATH_MS = 100;
// How long a page waits before it retries when the service does not answer.
const AGAIN_MS = 500;
const AGAIN_MAX_MS = 8000;
// Statuses of a service that is down, starting or overloaded. All others are final.
const PASSING = [0, 429, 500, 502, 503, 504];

const isPassing = (error) => error instanceof Refusal && PASSING.includes(error.status);

/** @returns {Promise<void>} */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
}

/** @returns {Promise<void>} */
function seen(signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (!document.hidden || signal.aborted) {
        document.removeEventListener("visibilitychange", look);
        resolve();
      }
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
    look();
  });
}

// Calls `look` with whether it may keep a connection open. Locks are shared by all pages of the origin, and released
// when their page closes. Browsers without locks (HTTP on a name other than localhost) never keep a connection open.
async function inTurn(look, signal, at = 0) {
  if (!navigator.locks || at === HELD_MAX) return look(false);
  return navigator.locks.request(`live-${at}`, { ifAvailable: true }, (lock) => (lock ? look(true) : inTurn(look, signal, at + 1)));
}

// Polls until `look(mayHold, signal)` returns true. If the service is unreachable, calls `onLost` with the error, and
// with null once the service is reachable again. Throws permanent errors.
export async function follow(look, { signal, onLost, turns = inTurn }) {
  let failures = 0;
  while (!signal.aborted) {
    await seen(signal);
    if (signal.aborted) return;
    const turn = new AbortController();
    unattended.add(turn.signal);
    const leave = () => {
      if (document.hidden) turn.abort();
    };
    const end = () => turn.abort();
    document.addEventListener("visibilitychange", leave);
    signal.addEventListener("abort", end, { once: true });
    let wait = LOOK_MS;
    try {
      const isOver = await turns(async (mayHold) => {
        if (mayHold) wait = BREATH_MS;
        return look(mayHold, turn.signal);
      }, turn.signal);
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

// Event names of predictions, of executions, or of both.
const NAMES = ["status", "log", "output", "step", "wait", "pause", "resume"];

// Follows the events of the run at `path` over an open connection until the run ends; returns the record. `on` has a
// function per event; `on.begin` is called when the stream starts from the beginning. `query` makes an ordinary request
// return immediately.
export function eventsOf(path, on, signal, query = "") {
  return new Promise((resolve, reject) => {
    const events = new EventSource(`${BASE}${path}/events`);
    const done = (act, value) => {
      events.close();
      act(value);
    };
    let isFresh = true;
    const begun = () => {
      if (isFresh) on.begin?.();
      isFresh = false;
    };
    for (const name of NAMES) {
      events.addEventListener(name, (event) => {
        begun();
        on[name]?.(JSON.parse(event.data));
      });
    }
    events.addEventListener("reset", () => {
      isFresh = false;
      on.begin?.();
    });
    events.addEventListener("end", (event) => done(resolve, JSON.parse(event.data)));
    events.onopen = () => on.lost?.(null);
    events.onerror = () => {
      const away = connectionLost();
      // The browser reconnects by itself unless the service refused the connection. In that case, an ordinary request
      // determines the reason.
      if (events.readyState === EventSource.CLOSED)
        ask("GET", path + query, undefined, { signal }).then(
          () => done(reject, away),
          (error) => done(reject, error),
        );
      else on.lost?.(away);
    };
    signal.addEventListener("abort", () => done(reject, new DOMException("nobody looks", "AbortError")), { once: true });
  });
}

// Reloads after a change, and once more if there were changes in the meantime: never concurrently, and with a pause in
// between.
export function rereading(read, signal) {
  let isReading = false;
  let isStale = false;
  return async () => {
    if (isReading) {
      isStale = true;
      return;
    }
    isReading = true;
    do {
      isStale = false;
      // After a failure, the next event triggers another attempt.
      await read().catch(() => null);
      await pause(BREATH_MS, signal);
    } while (isStale && !signal.aborted);
    isReading = false;
  };
}

// ---- Lists: changes in the organization ----

// One window of a browser holds the connection and forwards events to the other windows. Without
// locks (HTTP on a name other than localhost), each visible window has its own connection.
const windows = new BroadcastChannel("changes");
let isMissing = true;

// A hidden window reloads when it becomes visible again.
windows.onmessage = (event) => {
  if (document.hidden) isMissing = true;
  else tellLists(event.data);
};
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && isMissing) {
    isMissing = false;
    tellLists();
  }
});

async function hold(signal) {
  const answer = await fetch(`${BASE}/events`, { headers: UNATTENDED, signal, cache: "no-store" }).catch((error) => {
    throw error.name === "AbortError" ? error : connectionLost();
  });
  if (!answer.ok)
    throw new Refusal(answer.status, "Changes cannot be followed.", { retryAfter: Number(answer.headers.get("retry-after")) || null });
  // Earlier changes are not reported.
  isMissing = false;
  tellLists();
  windows.postMessage(null);
  try {
    for await (const { data } of eventsOfAnswer(answer)) {
      const { topics, retry_after: retryAfter } = JSON.parse(data);
      // A newer connection of the same member has replaced this one. The lock is kept until the time has passed or this
      // window is hidden, so that other windows do not reconnect immediately.
      if (!topics) {
        isMissing = true;
        await pause(retryAfter * 1000, signal);
        return;
      }
      windows.postMessage(topics);
      tellLists(topics);
    }
  } finally {
    isMissing = true;
  }
}

const alone = (look, signal) => (navigator.locks ? navigator.locks.request("changes", { signal }, () => look(true)) : look(true));

// Follows changes in the organization. Stops when the session has ended; the next request then shows a log-in.
export const followChanges = (signal) =>
  follow((_mayHold, turn) => hold(turn), { signal, onLost: () => null, turns: alone }).catch(() => null);
