// Bars on a time axis: the start and end of each span in percent of the axis. Hours of waiting would make all bars
// invisibly narrow, so long idle gaps are shortened and labeled.

// A long gap is at least this many times the median span, and at least this many milliseconds.
const LONG = 10;
const LONG_MS = 2000;

// Returns the axis for spans `{from, to}` in milliseconds: `at(time)` returns a position in percent, and `gaps` are the
// idle gaps that the axis shortens.
export function axisOf(spans, from, to) {
  const end = Math.max(to, from + 1);
  const sorted = spans.filter((span) => span.to >= span.from).sort((a, b) => a.from - b.from);
  const lengths = sorted.map((span) => span.to - span.from).sort((a, b) => a - b);
  const median = lengths[Math.floor(lengths.length / 2)] ?? 0;
  const longest = Math.max(LONG * median, LONG_MS);
  const gaps = [];
  let reached = from;
  for (const span of [...sorted, { from: end, to: end }]) {
    if (span.from - reached > longest) gaps.push({ from: reached, to: span.from });
    reached = Math.max(reached, span.to);
  }
  const hidden = gaps.reduce((sum, gap) => sum + (gap.to - gap.from), 0);
  const shown = end - from - hidden;
  // A shortened gap takes up a twelfth of the visible time.
  const width = gaps.length ? Math.max(shown, 1) / 12 : 0;
  const whole = Math.max(shown + width * gaps.length, 1);
  const at = (moment) => {
    let place = Math.min(Math.max(moment, from), end) - from;
    for (const gap of gaps) {
      if (moment >= gap.to) place -= gap.to - gap.from - width;
      else if (moment > gap.from) place -= (moment - gap.from) * (1 - width / (gap.to - gap.from));
    }
    return Math.min(100, Math.max(0, (place / whole) * 100));
  };
  return { at, gaps: gaps.map((gap) => ({ ...gap, middle: (at(gap.from) + at(gap.to)) / 2 })) };
}

const time = (text) => (text ? Date.parse(text) : null);

// The rows of a prediction: its queue time, then each attempt.
export function rowsOfPrediction(record, now) {
  const created = time(record.created_at);
  const attempts = record.attempts ?? [];
  const first = attempts.length
    ? time(attempts[0].started_at)
    : (time(record.started_at) ?? (record.completed_at ? time(record.completed_at) : now));
  return [
    { id: "queue", name: "In the queue", kind: "queue", status: null, bars: [{ kind: "queued", from: created, to: first ?? now }] },
    ...attempts.map((attempt, at) => ({
      id: `attempt-${at}`,
      name: attempt.model,
      note: at === 0 ? "First attempt" : `Attempt ${at + 1}`,
      status: attempt.status,
      error: attempt.error,
      class: attempt.error_classification,
      bars: [{ kind: barOf(attempt.status), from: time(attempt.started_at), to: time(attempt.completed_at) ?? now }],
    })),
  ];
}

// The rows of an execution: each step, with its waits and attempts as bars.
export function rowsOfExecution(record, now) {
  const asked = (record.waiting_for ?? []).filter((one) => one.reason === "event").map((one) => one.step_id);
  return Object.values(record.step_outputs ?? {}).map((step) => {
    const attempts = step.attempts ?? [];
    const bars = [];
    const started = time(step.started_at);
    const ended = time(step.completed_at) ?? (["running", "queued"].includes(step.status) ? now : null);
    if (attempts.length) {
      let reached = started;
      for (const attempt of attempts) {
        const from = time(attempt.started_at);
        if (reached !== null && from - reached > 1) bars.push({ kind: "queued", from: reached, to: from });
        const to = time(attempt.completed_at) ?? now;
        bars.push({ kind: barOf(attempt.status), from, to });
        reached = to;
      }
      if (ended !== null && ended - reached > 1 && !["completed", "failed", "cancelled"].includes(step.status))
        bars.push({ kind: "queued", from: reached, to: ended });
    } else if (started !== null && ended !== null) {
      bars.push({ kind: step.type === "wait" ? "queued" : barOf(step.status), from: started, to: ended });
    }
    return {
      id: step.step_id,
      name: step.name ?? step.step_id,
      note: noteOf(step),
      status: asked.includes(step.step_id) ? "event" : step.status,
      error: step.error,
      cause: step.error_cause,
      bars,
      step,
    };
  });
}

function noteOf(step) {
  const tries = step.attempts?.length > 1 ? `, ${step.attempts.length} attempts` : "";
  const model = step.metadata?.model ?? step.attempts?.at(-1)?.model;
  return `${model ?? step.type}${tries}${step.metadata?.fallback_used ? ", by its fallback" : ""}`;
}

function barOf(status) {
  return { success: "good", completed: "good", error: "bad", failed: "bad", cancelled: "off", skipped: "off" }[status] ?? "active";
}
