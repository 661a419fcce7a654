// Starts a node for a test on free ports, with its data in a folder of its own.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Returns a port that is free now. */
export async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Starts a node; `stop` ends it and removes its data. */
export async function startNode(more = {}) {
  const binary = process.env.TIDEGATE_BIN;
  if (!binary) throw new Error("TIDEGATE_BIN names no program");
  const data = more.data ?? (await mkdtemp(join(tmpdir(), "tidegate-console-")));
  const ports = more.ports ?? { client: await freePort(), admin: await freePort() };
  const child = spawn(binary, ["serve"], {
    env: {
      ...process.env, ...more.env, TIDEGATE__NODE__DATA: data,
      TIDEGATE__LISTEN__CLIENT: `127.0.0.1:${ports.client}`, TIDEGATE__LISTEN__ADMIN: `127.0.0.1:${ports.admin}`,
    },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let log = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (bytes) => (log += bytes));
  const url = `http://127.0.0.1:${ports.admin}`;
  const limit = Date.now() + 20_000;
  for (;;) {
    if (child.exitCode !== null || Date.now() > limit) throw new Error(`the node did not start:\n${log}`);
    const isReady = await fetch(`${url}/readyz`).then((it) => it.ok, () => false);
    if (isReady) break;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const end = async (signal = "SIGKILL") => {
    if (child.exitCode !== null) return;
    const over = once(child, "exit");
    child.kill(signal);
    await over;
  };
  return { url, data, ports, end, stop: async () => { await end(); await rm(data, { recursive: true, force: true }); } };
}
