// Reads server-sent events from the response to a POST: the browser's EventSource only supports GET.

import { connectionLost } from "./core.js";

const lost = (error) => {
  throw error.name === "AbortError" ? error : connectionLost();
};

// Yields {id, data} for each event; everything else is skipped.
export async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let id = null;
  for (;;) {
    const { value, done } = await reader.read().catch(lost);
    if (done) return;
    rest += value;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("id:")) id = line.slice(3).trim();
      else if (line.startsWith("data:")) yield { id, data: line.slice(5).trim() };
    }
  }
}
