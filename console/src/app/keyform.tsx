import { loadBoot } from "../live/boot.ts";
import { keyAsked, setKey } from "../live/key.ts";
import { Header } from "./shell.tsx";

/** Asks for the key of the admin port. */
export function KeyForm() {
  const isRefused = keyAsked.value === "refused";
  const use = (event: SubmitEvent & { readonly currentTarget: HTMLFormElement }) => {
    event.preventDefault();
    const value = new FormData(event.currentTarget).get("key")?.toString().trim() ?? "";
    if (!value) return;
    setKey(value);
    void loadBoot().catch(() => {});
  };
  return (
    <>
      <Header title="Key" />
      <form class="keyform" onSubmit={use}>
        <p>This node asks for a key of its admin port. The page keeps it until it is loaded again, and nowhere else.</p>
        <div class="row">
          <label class="field grow"><input name="key" type="password" aria-label="Key" placeholder="Key" autocomplete="off" autofocus aria-invalid={isRefused} /></label>
          <button type="submit" class="button primary">Use it</button>
        </div>
        {isRefused && <p class="wrong" role="alert">The node refused this key.</p>}
      </form>
    </>
  );
}
