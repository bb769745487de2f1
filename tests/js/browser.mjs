// Loaded before the unit tests: replaces the few parts of a browser that the dashboard's modules use while they are
// being loaded.

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
  document: Object.assign(new EventTarget(), { hidden: false, documentElement: { dataset: { place: "" } } }),
});
