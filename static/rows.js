// The body of a long table: only rows near the viewport are rendered, in groups. Each other group is replaced by an
// empty row of the same height.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";

// Maximum number of rows rendered without groups; longer tables have this many rows per group.
const WHOLE_MAX = 60;
const GROUP = 10;
// How far outside the viewport a group is rendered, and the assumed height of a row that has not been rendered yet.
const MARGIN = "150px 0px";
const ROW_PX = 44;

// Returns whether the page is being printed: a printout includes every row, and sections that are collapsed on the
// screen.
export function usePrinting() {
  const [isPrinted, setPrinted] = useState(false);
  useEffect(() => {
    const note = (event) => setPrinted(event.type === "beforeprint");
    addEventListener("beforeprint", note);
    addEventListener("afterprint", note);
    return () => {
      removeEventListener("beforeprint", note);
      removeEventListener("afterprint", note);
    };
  }, []);
  return isPrinted;
}

// `children` renders one row. `start`: the index of the row that is scrolled into view at first.
export function Rows({ all, columns, start = null, children }) {
  if (usePrinting() || all.length <= WHOLE_MAX) return html`<tbody>${all.map(children)}</tbody>`;
  const groups = [];
  for (let at = 0; at < all.length; at += GROUP) groups.push(at);
  return groups.map(
    (
      at,
    ) => html`<${Group} key=${at} rows=${all.slice(at, at + GROUP)} columns=${columns} isStart=${start !== null && at <= start && start < at + GROUP}
    isNear=${at < 2 * GROUP}>${children}</${Group}>`,
  );
}

function Group({ rows, columns, isStart, isNear: first, children }) {
  const body = useRef(null);
  const height = useRef(rows.length * ROW_PX);
  const [isNear, setNear] = useState(first);
  useEffect(() => {
    const watch = new IntersectionObserver(
      (seen) => {
        const { isIntersecting } = seen.at(-1);
        if (!isIntersecting && body.current?.offsetHeight) height.current = body.current.offsetHeight;
        setNear(isIntersecting);
      },
      { rootMargin: MARGIN },
    );
    watch.observe(body.current);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (isStart) body.current.scrollIntoView({ block: "center" });
  }, []);
  // The focused row stays rendered: otherwise, keyboard users would lose their position.
  const stays = isNear || body.current?.contains(document.activeElement);
  return html`<tbody ref=${body}>${stays ? rows.map(children) : html`<tr class="spacer" aria-hidden="true" style=${{ height: `${height.current}px` }}><td colspan=${columns}></td></tr>`}</tbody>`;
}
