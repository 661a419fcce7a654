// Starts a node for a test on free ports, with its data in a folder of its own.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const running = new Set();
process.on("exit", () => {
  for (const child of running) child.kill("SIGKILL");
});

/** Starts a node; `stop` ends it and removes its data. A killed node starts again by its `data` and its `ports`. */
export async function startNode(more = {}) {
  const binary = process.env.TIDEGATE_BIN;
  if (!binary) throw new Error("TIDEGATE_BIN names no program");
  const data = more.data ?? (await mkdtemp(join(tmpdir(), "tidegate-console-")));
  const { client = 0, admin = 0 } = more.ports ?? {};
  const file = join(data, "node.json");
  // A killed node leaves its file.
  await rm(file, { force: true });
  const child = spawn(binary, ["serve"], {
    env: {
      ...process.env, ...more.env, TIDEGATE__NODE__DATA: data,
      TIDEGATE__LISTEN__CLIENT: `127.0.0.1:${client}`, TIDEGATE__LISTEN__ADMIN: `127.0.0.1:${admin}`,
    },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let log = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (bytes) => (log += bytes)).unref();
  // A test that fails does not stop its node, which must not keep the run waiting.
  child.unref();
  running.add(child);
  const limit = Date.now() + 20_000;
  let addresses;
  for (;;) {
    if (child.exitCode !== null || Date.now() > limit) throw new Error(`the node did not start:\n${log}`);
    addresses ??= await readFile(file, "utf8").then(JSON.parse).catch(() => undefined);
    if (addresses && (await fetch(`http://${addresses.admin}/readyz`).then((it) => it.ok, () => false))) break;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const port = (address) => Number(address.slice(address.lastIndexOf(":") + 1));
  const end = async (signal = "SIGKILL") => {
    if (child.exitCode !== null) return;
    child.ref();
    const over = once(child, "exit");
    child.kill(signal);
    await over;
    running.delete(child);
  };
  const ports = { client: port(addresses.client), admin: port(addresses.admin) };
  return { url: `http://${addresses.admin}`, data, ports, end, stop: async () => { await end(); await rm(data, { recursive: true, force: true }); } };
}
