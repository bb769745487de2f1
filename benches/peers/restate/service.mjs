// The three steps as a Restate service: each step is durable before the next one begins.
import http2 from "node:http2";
import { createEndpointHandler, service } from "@restatedev/restate-sdk";

const [stub, port] = process.argv.slice(2);

async function call(body) {
  const answer = await fetch(`http://${stub}/model`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(`the model server answered ${answer.status}`);
  return answer.json();
}

const three = service({
  name: "three",
  handlers: {
    run: async (context, { bid }) => {
      let prev = null;
      for (const step of [0, 1, 2]) {
        prev = await context.run(`s${step}`, () => call({ input: bid, step, prev }));
      }
      return prev;
    },
  },
});

http2.createServer(createEndpointHandler({ services: [three] })).listen(Number(port), "127.0.0.1");
