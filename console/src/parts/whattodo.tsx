import { RUNBOOK_FILE, type Runbook } from "../words/runbook.ts";

/** The first steps of a runbook, and where all of them are. */
export function WhatToDo({ it }: { readonly it: Runbook }) {
  return (
    <details class="runbook">
      <summary>What to do</summary>
      <ol>{it.steps.map((step) => <li>{step}</li>)}</ol>
      <p class="quiet small">All steps: section {it.alert} of <code>{RUNBOOK_FILE}</code> in the repository.</p>
    </details>
  );
}
