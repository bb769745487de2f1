// Loaded before the unit tests: finds `/static/…` in this repository as the service serves it, and stands in for the
// few parts of a browser that the dashboard's modules touch when they are loaded.

import * as module from "node:module";
import { isMainThread } from "node:worker_threads";

// The form of a hook of node:module.
export function resolve(specifier, context, next) {
  if (!specifier.startsWith("/static/")) return next(specifier, context);
  return { url: new URL(`../..${specifier}`, import.meta.url).href, format: "module", shortCircuit: true };
}

// Node 20 runs hooks in a thread of their own, which loads this file again.
if (isMainThread) {
  // Not in the types of Node 20.
  const { registerHooks } = /** @type {any} */ (module);
  if (registerHooks) registerHooks({ resolve });
  else module.register(import.meta.url);

  const nothing = () => {};
  const location = { pathname: "/app/runs/", search: "?status=failed" };
  const visit = (_state, _title, to) => {
    if (to) [location.pathname, location.search] = [to.replace(/\?.*/, ""), to.replace(/^[^?]*/, "")];
  };
  class Channel {
    postMessage() {}
  }
  Object.assign(globalThis, {
    location,
    history: { state: null, replaceState: visit, pushState: visit },
    scrollTo: nothing,
    scrollY: 0,
    addEventListener: nothing,
    removeEventListener: nothing,
    BroadcastChannel: Channel,
    document: Object.assign(new EventTarget(), { hidden: false }),
  });
}
