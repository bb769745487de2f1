// Runs the cases of one client, and prints one JSON object per case: its name, and the error or null.
export const {
  ORRERY_TEST_BASE: BASE,
  ORRERY_TEST_AGENT: AGENT,
  ORRERY_TEST_FLOWS: FLOWS,
  ORRERY_TEST_OLLAMA: OLLAMA,
  ORRERY_TEST_WORKFLOWS: WORKFLOWS,
  ORRERY_TEST_KEY: KEY,
  ORRERY_TEST_SECURE: SECURE,
  ORRERY_TEST_SECURE_KEY: SECURE_KEY,
} = process.env;
export const [EARS, VOICE, BRUSH] = ["ears", "voice", "brush"];
export const [FAR, NEAR, TINY, VECTORS] = ["vendor/far", "near", "tiny", "vectors"];

export async function run(cases) {
  for (const [name, body] of Object.entries(cases)) {
    let error = null;
    try {
      await body();
    } catch (caught) {
      const line = /\/cases\/(?!case\.mjs)[^:]+:(\d+)/.exec(caught.stack ?? "")?.[1] ?? 0;
      error = `line ${line}: ${caught.name}: ${String(caught.message).replace(/\s+/g, " ").slice(0, 400)}`;
    }
    console.log(JSON.stringify({ case: name, error }));
  }
}
