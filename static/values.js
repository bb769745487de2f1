// Values while they are being edited: changes from elsewhere, the values of alternatives that are not selected, and the
// toast that undoes a deletion.

import { html, useEffect, useRef } from "./vendor/preact.js";
import { Button } from "./core.js";

// Distinguishes a change to `value` made elsewhere from one made here, although typed text reaches `value` a few
// keystrokes later. Returns a function that records values written here.
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

// Keeps a value for each alternative of a choice, so that nothing is lost by choosing another alternative and
// returning. Returns a function that stores the value of the alternative `from` and returns the value of `to`, which is
// `initial` at first.
export function useAlternatives() {
  const left = useRef(new Map()).current;
  return (from, value, to, initial) => {
    left.set(from, value);
    return left.has(to) ? left.get(to) : initial;
  };
}

const BOXES = ["checkbox", "radio", "range", "color", "file"].map((type) => `[type=${type}]`);

// Returns the text field that has the focus, even in an editor's shadow tree; null if another element has it.
export function focusedText() {
  let element = document.activeElement;
  while (element?.shadowRoot?.activeElement) element = element.shadowRoot.activeElement;
  return element?.matches(`textarea, [contenteditable=true], input:not(${BOXES})`) ? element : null;
}

export function Toast({ text, onUndo, ...rest }) {
  return html`<div class="toasts" role="status">${text ? html`<div class="toast"><span>${text}</span><${Button} icon="rotate-ccw" onClick=${onUndo} ...${rest}>Undo</${Button}></div>` : null}</div>`;
}
