// The documentation's search and its menu on narrow screens. The site's texts are inserted as text, never as markup.

const RESULTS_MAX = 30;
const EXCERPT = 180;
const root = document.body.dataset.root;
const byId = (id) => document.getElementById(id);
const query = /** @type {HTMLInputElement} */ (byId("query"));
const results = byId("results");
const article = document.querySelector("article");
const turn = /** @type {HTMLElement} */ (document.querySelector(".turn"));

let loading;

// The sections of all pages: address, heading, path of headings, text.
function sections() {
  loading ??= fetch(`${root}search.json`).then(async (answer) => {
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const rows = await answer.json();
    return rows.map(([url, title, path, body]) => ({ url, title, path, body, low: [title, path, body].map((text) => text.toLowerCase()) }));
  });
  return loading;
}

// Returns the sections that contain every word, best match first: words in headings count more than words in the text.
export function find(all, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return { words, found: [] };
  const found = [];
  for (const one of all) {
    const [title, path, body] = one.low;
    let score = 0;
    const has = words.every((word) => {
      const here = 8 * Number(title.includes(word)) + 3 * Number(path.includes(word)) + Math.min(body.split(word).length - 1, 5);
      score += here + 8 * Number(title === word);
      return here > 0;
    });
    if (has) found.push({ one, score });
  }
  found.sort((a, b) => b.score - a.score);
  return { words, found: found.map(({ one }) => one) };
}

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

// Returns the part of the text around the first word, with the words marked.
function excerpt(one, words) {
  const [, , low] = one.low;
  const first = Math.max(0, Math.min(...words.map((word) => low.indexOf(word)).filter((at) => at >= 0), low.length) - EXCERPT / 3);
  const start = first === 0 ? 0 : one.body.indexOf(" ", first) + 1;
  const end = one.body.length > start + EXCERPT ? one.body.lastIndexOf(" ", start + EXCERPT) : one.body.length;
  const text = `${start > 0 ? "… " : ""}${one.body.slice(start, end)}${end < one.body.length ? " …" : ""}`;
  const made = element("p", "");
  const pattern = new RegExp(`(${words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "gi");
  text.split(pattern).forEach((part, at) => made.append(at % 2 ? element("mark", "", part) : part));
  return made;
}

function row(one, words) {
  const link = element("a", "", one.title);
  link.href = root + one.url;
  return element("li", "", link, element("div", "place", one.path), excerpt(one, words));
}

async function search() {
  const asked = query.value;
  const isOn = asked.trim() !== "";
  results.hidden = !isOn;
  article.hidden = isOn;
  turn.hidden = isOn;
  if (!isOn) return;
  try {
    const { words, found } = find(await sections(), asked);
    if (query.value !== asked) return;
    const count =
      found.length === 0 ? "No section contains all of these words." : `${found.length} section${found.length === 1 ? "" : "s"}`;
    const list = element("ol", "", ...found.slice(0, RESULTS_MAX).map((one) => row(one, words)));
    results.replaceChildren(element("p", "count", count), list);
    window.scrollTo(0, 0);
  } catch (error) {
    loading = undefined;
    results.replaceChildren(element("p", "count", `The search cannot be loaded: ${error.message}`));
  }
}

function toggleMenu(isOpen) {
  byId("contents").classList.toggle("open", isOpen);
  byId("menu").setAttribute("aria-expanded", String(isOpen));
}

query.addEventListener("input", search);
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  results.querySelector("a")?.click();
});
// Following a link within this page closes the results.
results.addEventListener("click", (event) => {
  if (event.target instanceof HTMLAnchorElement) {
    query.value = "";
    search();
  }
});
byId("menu").addEventListener("click", () => toggleMenu(byId("menu").getAttribute("aria-expanded") !== "true"));
document.addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    query.focus();
  } else if (event.key === "Escape" && event.target === query) {
    query.value = "";
    search();
  }
});
// Content that is wider than the page scrolls in its own box, which is also possible with the keyboard.
new ResizeObserver(() => {
  for (const box of /** @type {NodeListOf<HTMLElement>} */ (article.querySelectorAll("pre, .table-wrapper"))) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}).observe(article);
// Scrolls the table of contents, which scrolls separately, so that the current page is visible in it.
const current = document.querySelector("#contents [aria-current]");
if (current instanceof HTMLElement) byId("contents").scrollTop = current.offsetTop - 200;
// When a user goes back, the browser keeps the words in the field.
if (query.value) search();
