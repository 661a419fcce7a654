import { signal } from "@preact/signals";
import { loadBoot } from "../live/boot.ts";
import { keyAsked, tryKey } from "../live/key.ts";
import { Header } from "./shell.tsx";

/** Whether the typed text can't be a key, such as one with a dash that a word processor has made longer. */
const isOdd = signal(false);

/** Asks for the key of the admin port. */
export function KeyForm() {
  const isRefused = keyAsked.value === "refused";
  const use = (event: SubmitEvent & { readonly currentTarget: HTMLFormElement }) => {
    event.preventDefault();
    const value = new FormData(event.currentTarget).get("key")?.toString().trim() ?? "";
    // A header holds nothing else: a request with it would never be sent.
    isOdd.value = value !== "" && !/^[!-~]+$/.test(value);
    if (!value || isOdd.value) return;
    void tryKey(value).then(loadBoot).catch(() => {});
  };
  return (
    <>
      <Header title="Key" />
      <form class="keyform" onSubmit={use}>
        <p>This node asks for a key of its admin port. The page keeps it until it is loaded again, and nowhere else.</p>
        <div class="row">
          <label class="field grow"><input name="key" type="password" aria-label="Key" placeholder="Key" autocomplete="off" autofocus aria-invalid={isRefused || isOdd.value} /></label>
          <button type="submit" class="button primary">Use it</button>
        </div>
        {isOdd.value && <p class="wrong" role="alert">A key has letters, digits and signs of the keyboard, without spaces. Copy it again.</p>}
        {isRefused && !isOdd.value && <p class="wrong" role="alert">The node refused this key.</p>}
      </form>
    </>
  );
}
