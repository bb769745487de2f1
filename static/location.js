// The location: path and query of the URL, and the scroll position of each history entry. Paths are as on the
// dashboard's own host; `BASE` is the path below which the page was served, which is empty on that host.

import { signal } from "./vendor/preact.js";

export const BASE = document.documentElement.dataset.place;
export const place = signal(here());

function here() {
  return { path: location.pathname.slice(BASE.length).replace(/\/+$/, "") || "/", query: new URLSearchParams(location.search) };
}

export function go(target, { replace = false } = {}) {
  if (!replace) keepScroll();
  restoring?.abort();
  history[replace ? "replaceState" : "pushState"](replace ? history.state : null, "", BASE + target);
  const before = place.value.path;
  place.value = here();
  // A new history entry starts at its top, even if it is the next page of the same list.
  if (!replace || place.value.path !== before) scrollTo(0, 0);
}

// Back and Forward restore the last scroll position of a history entry.
let restoring = /** @type {AbortController | null} */ (null);
let atRest = null;
function keepScroll() {
  clearTimeout(atRest);
  if (!restoring) history.replaceState({ scroll: scrollY }, "");
}
addEventListener("scroll", () => {
  clearTimeout(atRest);
  atRest = setTimeout(keepScroll, SCROLL_REST_MS);
});

addEventListener("popstate", (event) => {
  clearTimeout(atRest);
  restoring?.abort();
  place.value = here();
  if (event.state?.scroll) scrollBack(event.state.scroll);
});

// How long Back waits for a page to be tall enough, how long it then keeps the scroll position, and how long a scroll
// position must be unchanged before it is recorded.
const SCROLL_WAIT_MS = 15000;
const SCROLL_HOLD_MS = 300;
const SCROLL_REST_MS = 150;

// Scrolls to `top`, or as far as possible while the page is still growing, unless the user scrolls first. Long tables
// grow when they are scrolled into view: the height of rows outside the viewport is an estimate.
function scrollBack(top) {
  const abort = new AbortController();
  restoring = abort;
  abort.signal.addEventListener("abort", () => (restoring = null));
  for (const name of ["wheel", "touchstart", "keydown", "pointerdown"])
    addEventListener(name, () => abort.abort(), { signal: abort.signal, passive: true });
  const begun = performance.now();
  let reached = null;
  let last = { height: null, goal: null };
  const look = (now) => {
    if (abort.signal.aborted) return;
    const height = document.documentElement.scrollHeight;
    const goal = Math.min(top, height - innerHeight);
    const isAway = Math.abs(scrollY - goal) > 1;
    // If a page has moved without changing its height, the user moved it, for example with the scroll bar.
    if (isAway && height === last.height && goal === last.goal) {
      abort.abort();
      return;
    }
    if (isAway) scrollTo(0, goal);
    if (goal < top) reached = null;
    else if (isAway || reached === null) reached = now;
    last = { height, goal };
    if (now - begun > SCROLL_WAIT_MS || (reached !== null && now - reached > SCROLL_HOLD_MS)) abort.abort();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}

/**
 * Sets query parameters of the URL; an empty value removes the parameter.
 * @param {Record<string, any>} changes
 * @param {{ replace?: boolean }} [options]
 */
export function setQuery(changes, options = { replace: true }) {
  const query = new URLSearchParams(place.value.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined) query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  go(place.value.path + (text ? `?${text}` : ""), options);
}

// Back, Forward and a reload may load the document again. The rows arrive too late for the browser to restore the
// scroll position itself.
if (history.state?.scroll) scrollBack(history.state.scroll);
