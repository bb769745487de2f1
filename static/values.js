// Values while they are edited: changes that come from elsewhere, the values of alternatives that were left, and the
// toast that takes a deletion back.

import { html, useEffect, useRef } from "./vendor/preact.js";
import { Button } from "./core.js";

// Distinguishes an external change to `value` from one made here: typed text reaches `value` a few keys later.
// Returns a function that records values written here.
export function useForeign(value, onForeign) {
  const own = useRef([value]);
  useEffect(() => {
    const at = own.current.indexOf(value);
    own.current = at < 0 ? [value] : own.current.slice(at);
    if (at < 0) onForeign(value);
  }, [value]);
  return (written) => {
    own.current.push(written);
  };
}

// A choice whose alternatives have values of their own keeps the value of each: choosing another one and returning loses
// nothing. Returns a function that leaves `from` with its value and returns the value of `to`, at first `initial`.
export function useAlternatives() {
  const left = useRef(new Map()).current;
  return (from, value, to, initial) => {
    left.set(from, value);
    return left.has(to) ? left.get(to) : initial;
  };
}

const BOXES = ["checkbox", "radio", "range", "color", "file"].map((type) => `[type=${type}]`);

// The text field that has the focus, also in an editor's shadow tree; null if another element has it.
export function focusedText() {
  let element = document.activeElement;
  while (element?.shadowRoot?.activeElement) element = element.shadowRoot.activeElement;
  return element?.matches(`textarea, [contenteditable=true], input:not(${BOXES})`) ? element : null;
}

export function Toast({ text, onUndo, ...rest }) {
  return html`<div class="toasts" role="status">${text ? html`<div class="toast"><span>${text}</span><${Button} icon="rotate-ccw" onClick=${onUndo} ...${rest}>Undo</${Button}></div>` : null}</div>`;
}
