// Server-sent events of an answer to a POST, as they come: the browser's own reader only asks with GET.

// Gives {id, data} for each event; everything else is skipped.
export async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let id = null;
  for (;;) {
    const { value, done } = await reader.read();
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
