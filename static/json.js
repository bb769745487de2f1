// A JSON editor with colors, line numbers, folding, and error markers. The editor is a vendored module, loaded when a
// JSON tab is first opened; if that fails, a plain text field replaces it.

import { html, useEffect, useId, useRef, useState } from "./vendor/preact.js";
import { Icon } from "./core.js";
import { useForeign } from "./values.js";

let loading = null;
const load = () =>
  (loading ??= import("./vendor/codemirror.js").catch((error) => {
    loading = null;
    throw error;
  }));

const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const SCALAR = /(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.+-])/y;

// The position of a JSON syntax error, in characters. Not all browsers report it.
export function faultAt(text) {
  const open = [];
  let wants = "value";
  let at = 0;
  const take = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at += found[0].length;
    return Boolean(found);
  };
  for (;;) {
    while (" \t\r\n".includes(text[at]) && at < text.length) at += 1;
    const sign = text[at];
    if (wants === "end" && !open.length) return at;
    if (wants === "name" || (wants === "name or }" && sign !== "}")) {
      if (!take(STRING)) return at;
      wants = ":";
    } else if (wants === ":") {
      if (sign !== ":") return at;
      at += 1;
      wants = "value";
    } else if (wants === "end" && sign === ",") {
      at += 1;
      wants = open.at(-1) === "}" ? "name" : "value";
    } else if (sign === open.at(-1) && ["end", "name or }", "value or ]"].includes(wants)) {
      at += 1;
      open.pop();
      wants = "end";
    } else if (wants === "end") return at;
    else if (sign === "{" || sign === "[") {
      at += 1;
      open.push(sign === "{" ? "}" : "]");
      wants = sign === "{" ? "name or }" : "value or ]";
    } else if (take(STRING) || take(SCALAR)) wants = "end";
    else return at;
  }
}

// The line of a JSON syntax error, from 1.
const lineOf = (text) => text.slice(0, faultAt(text)).split("\n").length;

// Invalid JSON stays as typed, with its line marked. `mayBeEmpty`: empty text results in `undefined`.
export function JsonEditor({ label, hint, value, onValue, onValid, readonly = false, mayBeEmpty = false }) {
  const format = (of) => JSON.stringify(of, null, 2) ?? "";
  const [text, setText] = useState(() => format(value));
  const [fault, setFault] = useState(null);
  const [editor, setEditor] = useState(null);
  const id = useId();
  useEffect(() => {
    let isThere = true;
    load().then(
      (module) => isThere && setEditor(module),
      () => isThere && setEditor("none"),
    );
    return () => {
      isThere = false;
    };
  }, []);
  // Counts changes to the value from elsewhere: only these are copied into the editor.
  const [round, setRound] = useState(0);
  const wrote = useForeign(value, (foreign) => {
    setText(format(foreign));
    setRound((n) => n + 1);
    setFault(null);
    onValid?.(true);
  });
  const read = (next) => {
    setText(next);
    try {
      const parsed = mayBeEmpty && next.trim() === "" ? undefined : JSON.parse(next);
      setFault(null);
      onValid?.(true);
      wrote(parsed);
      onValue(parsed);
    } catch (error) {
      setFault({ line: lineOf(next), message: error.message });
      onValid?.(false);
    }
  };
  const problem = fault ? `Line ${fault.line}: this is not JSON yet. ${fault.message}` : null;
  const shared = { label, text, round, readonly, fault, described: problem ?? hint, onText: read };
  return html`<div class=${`field ${fault ? "wrong" : ""}`}><span class="label" id=${id}>${label}</span>
    ${
      editor === null
        ? html`<p class="loading" role="status">Loading…</p>`
        : editor === "none"
          ? html`<textarea class="mono" rows="20" aria-labelledby=${id} spellcheck=${false} readonly=${readonly} value=${text} onInput=${(event) => read(event.currentTarget.value)} />`
          : html`<${Mirror} ...${shared} of=${editor} />`
    }
    ${hint ? html`<p class="hint">${hint}</p>` : null}
    ${problem ? html`<p class="field-error" role="status"><${Icon} name="circle-alert" />${problem}</p>` : null}</div>`;
}

const COLOURS = [
  ["propertyName", "--accent"],
  ["string", "--good"],
  ["number", "--active"],
  ["bool", "--active"],
  ["null", "--quiet"],
  ["invalid", "--bad"],
];

// The editor's style: the page's colors, which reach into the shadow tree as custom properties.
const theme = ({ EditorView }) =>
  EditorView.theme({
    "&": { color: "var(--text)", backgroundColor: "var(--sunken)", fontSize: ".86rem", minHeight: "20rem" },
    "&.cm-focused": { outline: "none" },
    ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5", overflow: "auto" },
    ".cm-content": { padding: ".6rem 0", caretColor: "var(--text)" },
    ".cm-gutters": { color: "var(--quiet)", backgroundColor: "var(--sunken)", border: "0" },
    ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "transparent" },
    "&.cm-focused .cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--line) 45%, transparent)" },
    "&.cm-focused .cm-matchingBracket": { backgroundColor: "var(--accent-soft)", outline: "1px solid var(--line-strong)" },
    ".cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": {
      background: "color-mix(in srgb, var(--accent) 25%, transparent)",
    },
    ".cm-cursor": { borderLeftColor: "var(--text)" },
    ".cm-foldPlaceholder": { color: "var(--quiet)", backgroundColor: "transparent", border: "1px solid var(--line-strong)" },
    ".cm-fault": { backgroundColor: "color-mix(in srgb, var(--bad) 18%, transparent)", boxShadow: "inset 3px 0 var(--bad)" },
  });

function Mirror({ of, label, text, round, readonly, fault, described, onText }) {
  const host = useRef(null);
  const view = useRef(null);
  const parts = useRef(null);
  const latest = useRef(onText);
  latest.current = onText;
  // The editor needs its own accessible name: a label outside a shadow tree cannot be referenced from inside.
  const said = () =>
    of.EditorView.contentAttributes.of({
      tabindex: "0",
      "aria-label": label,
      "aria-description": described ?? "",
      "aria-invalid": fault ? "true" : "false",
      "aria-readonly": readonly ? "true" : "false",
    });
  const marked = () =>
    fault
      ? of.EditorView.decorations.of((now) => {
          const line = now.state.doc.line(Math.min(fault.line, now.state.doc.lines));
          return of.Decoration.set([of.Decoration.line({ class: "cm-fault" }).range(line.from)]);
        })
      : [];
  useEffect(() => {
    const { Compartment, EditorState, EditorView, HighlightStyle, Prec, keymap, tags } = of;
    const colours = HighlightStyle.define(COLOURS.map(([name, colour]) => ({ tag: tags[name], color: `var(${colour})` })));
    parts.current = { said: new Compartment(), locked: new Compartment(), fault: new Compartment() };
    // The page's content security policy forbids style elements: inside a shadow tree, the editor uses adopted style
    // sheets.
    const root = host.current.shadowRoot ?? host.current.attachShadow({ mode: "open" });
    view.current = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: text,
        extensions: [
          // Ctrl+Enter runs the model, as in the form.
          Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => true }])),
          of.lineNumbers(),
          of.history(),
          of.codeFolding(),
          of.foldGutter(),
          of.drawSelection(),
          of.indentOnInput(),
          of.bracketMatching(),
          of.highlightActiveLine(),
          EditorState.tabSize.of(2),
          EditorView.lineWrapping,
          of.json(),
          of.syntaxHighlighting(colours),
          theme(of),
          keymap.of([...of.defaultKeymap, ...of.historyKeymap, ...of.foldKeymap]),
          parts.current.said.of(said()),
          parts.current.locked.of(EditorState.readOnly.of(readonly)),
          parts.current.fault.of(marked()),
          EditorView.updateListener.of((update) => {
            if (update.docChanged && !update.transactions.some((one) => one.isUserEvent("foreign")))
              latest.current(update.state.doc.toString());
          }),
        ],
      }),
    });
    return () => view.current.destroy();
  }, []);
  useEffect(() => {
    const { state } = view.current;
    if (round && state.doc.toString() !== text)
      view.current.dispatch({ changes: { from: 0, to: state.doc.length, insert: text }, userEvent: "foreign" });
  }, [round]);
  useEffect(() => {
    const { said: words, locked, fault: lines } = parts.current;
    view.current.dispatch({
      effects: [words.reconfigure(said()), locked.reconfigure(of.EditorState.readOnly.of(readonly)), lines.reconfigure(marked())],
    });
  }, [label, described, readonly, fault]);
  return html`<div class="code-editor" ref=${host}></div>`;
}
