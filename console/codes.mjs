// Reads the table of codes from `docs/errors.md`, which is generated from the code table of the protocol.

/**
 * Parses the page of codes.
 * @param {string} page
 */
export function codes(page) {
  const found = [];
  let group = "";
  for (const block of page.split(/^(?=##)/m)) {
    const part = /^## (.+)$/m.exec(block);
    if (part && !block.startsWith("###")) group = part[1];
    const head = /^### (\d+) ([A-Z_]+)$/m.exec(block);
    if (!head) continue;
    const facts = /Temporary: (\w+) · Reconnect: (\w+) · WebSocket: (\d+)/.exec(block);
    const cure = /\*What to do:\* ([\s\S]+?)\n\n/.exec(block);
    const cause = block.slice(head[0].length).split("*What to do:*")[0].trim();
    if (!facts || !cure) throw new Error(`the page of codes has an entry without facts: ${head[0]}`);
    found.push({
      code: Number(head[1]), name: head[2], group, cause: cause.replaceAll("\n", " "), cure: cure[1].replaceAll("\n", " "),
      temporary: facts[1] === "yes", reconnect: facts[2], status: Number(facts[3]),
    });
  }
  if (found.length === 0) throw new Error("the page of codes is empty");
  return found;
}
