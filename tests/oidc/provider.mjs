// The conforming OpenID provider `oidc-provider`, and a browser that logs in through it.
//
// Prints its issuer, reads the URL of the dashboard from standard input, and ends with status 0 if the dashboard
// follows the person's groups. The folder of the npm packages is the first argument.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.argv[2]}/`);
const { Provider } = await import(pathToFileURL(require.resolve("oidc-provider")).href);

const server = createServer();
server.listen(0, "127.0.0.1");
await once(server, "listening");
const issuer = `http://127.0.0.1:${server.address().port}`;
console.log(issuer);
const [dashboard] = await once(createInterface({ input: process.stdin }), "line");

let groups = ["staff"];
const provider = new Provider(issuer, {
  clients: [{ client_id: "orrery", client_secret: "a secret/", redirect_uris: [`${dashboard}/session/oidc/callback`] }],
  claims: { openid: ["sub", "groups"], email: ["email", "email_verified"], profile: ["name"] },
  findAccount: (_context, sub) => ({
    accountId: sub,
    claims: () => ({ sub, groups, name: "Ada", email: "ada@example.com", email_verified: true }),
  }),
  interactions: { url: (_context, interaction) => `/interaction/${interaction.uid}` },
  features: { devInteractions: { enabled: false } },
  pkce: { required: () => true },
});
const answer = provider.callback();
server.on("request", async (request, response) => {
  if (!request.url.startsWith("/interaction/")) return answer(request, response);
  const { prompt, params, session } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") return provider.interactionFinished(request, response, { login: { accountId: "ada" } });
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope(prompt.details.missingOIDCScope?.join(" ") ?? params.scope);
  if (prompt.details.missingOIDCClaims) grant.addOIDCClaims(prompt.details.missingOIDCClaims);
  return provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } }, { mergeWithLastSubmission: true });
});

// Follows redirects and keeps cookies, as a browser does. Returns the address of the last page.
async function browse(cookies, address) {
  let url = address;
  for (let hop = 0; hop < 20; hop += 1) {
    const { origin } = new URL(url);
    const jar = cookies[origin] ?? {};
    const cookie = Object.entries(jar).map((pair) => pair.join("="));
    const reply = await fetch(url, { redirect: "manual", headers: { cookie: cookie.join("; ") } });
    for (const line of reply.headers.getSetCookie()) {
      const [, name, value] = /^([^=]+)=([^;]*)/.exec(line);
      jar[name] = value;
    }
    cookies[origin] = jar;
    if (reply.status < 300 || reply.status >= 400) return { url, reply };
    url = new URL(reply.headers.get("location"), url).href;
  }
  throw new Error(`too many redirects, the last to ${url}`);
}

const logIn = async (cookies) => (await browse(cookies, `${dashboard}/session/oidc`)).url;
const member = async (cookies) => (await (await browse(cookies, `${dashboard}/session`)).reply.json()).member;

const first = {};
assert.equal(await logIn(first), `${dashboard}/app`);
const { email, name, role, external } = await member(first);
assert.deepEqual({ email, name, role, external }, { email: "ada@example.com", name: "Ada", role: "operator", external: true });
groups = ["staff", "admins"];
assert.equal(await logIn({}), `${dashboard}/app`);
assert.equal((await member(first)).role, "editor");
groups = ["others"];
assert.equal(await logIn({}), `${dashboard}/?sso=groups`);
assert.equal(await member(first), null);
groups = ["staff"];
assert.equal(await logIn(first), `${dashboard}/app`);
assert.equal((await member(first)).role, "operator");
server.close();
process.exit(0);
