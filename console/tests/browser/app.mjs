// An application of its own origin, whose pages use the TypeScript client.
import { once } from "node:events";
import { createServer } from "node:http";
import { join, resolve } from "node:path";
import * as esbuild from "esbuild";

const client = resolve(new URL("../..", import.meta.url).pathname, process.env.TIDEGATE_TS_CLIENT ?? "../clients/typescript");

/** What the application shows: its state, the reason of the last end with its code, and what it received. */
const PAGE = `<!doctype html><title>Application</title><p id=state></p><p id=error></p><ol id=messages></ol>`;

/** Serves the application; `url` is its origin. */
export async function startApp() {
  const { outputFiles } = await esbuild.build({ entryPoints: [join(client, "src/browser.ts")], bundle: true, format: "esm", target: "es2022", write: false, outdir: "/", splitting: true });
  const files = new Map(outputFiles.map((file) => [file.path, file.text]));
  const server = createServer((request, response) => {
    const script = files.get(request.url);
    response.writeHead(script || request.url === "/" ? 200 : 404, { "content-type": script ? "text/javascript" : "text/html" });
    response.end(script ?? (request.url === "/" ? PAGE : ""));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { url: `http://127.0.0.1:${server.address().port}`, stop: () => server.close() };
}

/** Opens a page of the application in a context of the browser; `token` logs in as the user that it names. */
export async function openApp(context, app, node, token, options = {}) {
  const page = await context.newPage();
  await page.goto(app.url);
  await page.evaluate(async ([address, given, more]) => {
    const { connect } = await import("/browser.js");
    const put = (id, text) => (document.getElementById(id).textContent = text);
    window.client = connect({ addresses: [address], token: () => (window.token ??= given), ...more });
    window.client.on("state", ({ name, error }) => {
      put("state", name);
      put("error", error ? `${error.code} ${error.name}: ${error.message}` : "");
    });
    window.client.on("message", ({ sender, content }) => document.getElementById("messages").append(Object.assign(document.createElement("li"), { textContent: `${sender}: ${content.text}` })));
  }, [`ws://127.0.0.1:${node.ports.client}`, token, options]);
  return page;
}
