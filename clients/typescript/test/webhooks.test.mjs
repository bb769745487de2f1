// Deliveries of a real service, genuine and not.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { test } from "node:test";

import { verifyWebhook, WebhookError } from "orrery-client";

import { client, fake } from "./support.mjs";

const orrery = client();
const SECRET = `whsec_${Buffer.from("twenty-four secret bytes").toString("base64")}`;

async function delivery(receiver, webhook_secret) {
  const more = { webhook_url: receiver.url, webhook_secret };
  const { predictionID } = await orrery.predictions.create("text-template", { template: "x" }, more);
  return { predictionID, ...(await receiver.next()) };
}

/** What Standard Webhooks defines. */
function signed(body, id = "msg_1", at = Math.floor(Date.now() / 1000)) {
  const signature = createHmac("sha256", "twenty-four secret bytes").update(`${id}.${at}.${body}`).digest("base64");
  return { "webhook-id": id, "webhook-timestamp": String(at), "webhook-signature": `v1,AAAA v1a,ignored v1,${signature}` };
}

test("real deliveries are genuine", async (t) => {
  const receiver = await fake(t);
  for (const secret of [SECRET, "a secret of yours", "whsec_no base64", "whsec_abd="]) {
    const { predictionID, body, headers } = await delivery(receiver, secret);
    const result = await verifyWebhook(body, headers, secret);
    assert.deepEqual([result.execution_id, result.status, result.output], [predictionID, "completed", "x"]);
    assert.deepEqual(await verifyWebhook(body.toString(), new Headers(headers), secret), result);
  }
  assert.deepEqual(await verifyWebhook("{}", signed("{}"), SECRET), {});
});

test("both secrets of a rotated endpoint are accepted", async (t) => {
  const receiver = await fake(t);
  const { data: made } = await orrery.api.POST("/v1/webhook-endpoints", { body: { url: receiver.url, events: ["prediction.completed"] } });
  const params = { path: { endpoint: made.id } };
  const { data: rotated } = await orrery.api.POST("/v1/webhook-endpoints/{endpoint}/rotate", { params, body: { grace_seconds: 3600 } });
  await orrery.predictions.create("text-template", { template: "y" });
  const { body, headers } = await receiver.next();
  await orrery.api.DELETE("/v1/webhook-endpoints/{endpoint}", { params });
  for (const { secret } of [made, rotated]) assert.equal((await verifyWebhook(body, headers, secret)).type, "prediction.completed");
});

test("forged, old and replayed deliveries are rejected", async (t) => {
  const { body, headers } = await delivery(await fake(t), SECRET);
  const rejected = async (reason, { sent = body, secret = SECRET, ...changed }) => {
    await assert.rejects(verifyWebhook(sent, { ...headers, ...changed }, secret), (error) => {
      return error instanceof WebhookError && reason.test(error.message);
    });
  };
  await rejected(/no signature matches/, { secret: "another" });
  await rejected(/no signature matches/, { sent: body.toString().replace("completed", "cancelled") });
  await rejected(/no signature matches/, { "webhook-signature": `v1,${Buffer.alloc(32).toString("base64")}` });
  await rejected(/no signature matches/, { "webhook-signature": "v1,not base64 v2,a v1," });
  await rejected(/header webhook-signature is missing/, { "webhook-signature": undefined });
  await rejected(/not a number/, { "webhook-timestamp": "yesterday" });
  // A replay with a new time or a new id needs a new signature.
  await rejected(/no signature matches/, { "webhook-timestamp": String(Number(headers["webhook-timestamp"]) + 1) });
  await rejected(/no signature matches/, { "webhook-id": "another" });
  const now = Math.floor(Date.now() / 1000);
  for (const at of [now - 310, now + 310]) await rejected(/too old or in the future/, { sent: "{}", ...signed("{}", "msg_1", at) });
  await rejected(/not valid JSON/, { sent: "{", ...signed("{") });
});
