// Shows what GET /status.json says, and asks again every few seconds while the page is in view.
// Everything that comes from the service is put in as text, never as markup.
"use strict";

const EVERY_MS = 3000;
const PATIENCE_MS = 5000;
const WORDS = { base: "Base", workflows: "Workflows", flows: "Flows", agent: "Agent", dashboard: "Dashboard" };

const number = new Intl.NumberFormat();
const element = (id) => document.getElementById(id);
let asking = false;

function show(id, text) {
  const place = element(id);
  // Only what has changed: a screen reader announces each change.
  if (place.textContent !== text) place.textContent = text;
}

function count(value) {
  return Number.isFinite(value) ? number.format(value) : "–";
}

function span(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "–";
  const whole = Math.floor(seconds);
  const days = Math.floor(whole / 86400);
  const hours = Math.floor(whole / 3600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  if (minutes > 0) return `${minutes} min ${whole % 60} s`;
  return `${whole} s`;
}

function state(kind, text) {
  element("state").className = `state ${kind}`;
  show("state-text", text);
  document.body.classList.toggle("stale", kind === "bad");
}

// Only addresses of the web become links.
function address(url) {
  if (!/^https?:\/\//i.test(url)) return document.createTextNode(url);
  const link = document.createElement("a");
  link.href = url;
  link.rel = "noreferrer";
  link.textContent = url;
  return link;
}

function health(healthy) {
  const mark = document.createElement("span");
  mark.className = `state ${healthy ? "good" : "bad"}`;
  const dot = document.createElement("span");
  dot.className = "dot";
  dot.setAttribute("aria-hidden", "true");
  mark.append(dot, healthy ? "Healthy" : "Not answering");
  return mark;
}

function row(host) {
  const line = document.createElement("tr");
  const role = document.createElement("th");
  role.scope = "row";
  role.textContent = WORDS[host.role] ?? String(host.role);
  const place = document.createElement("td");
  place.append(address(String(host.url ?? "")));
  const how = document.createElement("td");
  how.append(health(host.healthy === true));
  line.append(role, place, how);
  return line;
}

let shownHosts = "";
function showHosts(hosts) {
  // The rows are replaced only when they differ, so that a link in focus keeps it.
  const key = JSON.stringify(hosts);
  if (key === shownHosts) return;
  shownHosts = key;
  element("hosts").replaceChildren(...hosts.map(row));
}

function showStatus(status) {
  const name = String(status.name ?? "orrery");
  show("name", name);
  show("version", `Version ${status.version ?? "unknown"}`);
  show("models", count(status.models));
  show("running", count(status.executions?.running));
  show("queued", count(status.executions?.queued));
  show("pending", count(status.webhooks?.pending));
  show("uptime", span(status.uptime_seconds));
  showHosts(Array.isArray(status.hosts) ? status.hosts : []);
  if (status.ready === true) state("good", "Ready");
  else state("waiting", "Starting");
  show("asked", `As of ${new Date().toLocaleTimeString()}; asked again every ${EVERY_MS / 1000} seconds.`);
}

async function ask() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const answer = await fetch("/status.json", {
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (!answer.ok) throw new Error(`the service answered ${answer.status}`);
    showStatus(await answer.json());
  } catch (error) {
    state("bad", "No answer");
    show("asked", `Asked in vain at ${new Date().toLocaleTimeString()}; trying again.`);
    console.warn(error);
  } finally {
    asking = false;
  }
}

document.addEventListener("visibilitychange", ask);
setInterval(ask, EVERY_MS);
ask();
