import { pending } from "../live/loading.ts";

/** A thin bar under the header while something is missing that was asked for; it is invisible for the first 400 ms. */
export function Progress({ isBusy }: { readonly isBusy: boolean }) {
  return isBusy || pending.value > 0 ? <div class="progress" role="progressbar" aria-label="Loading" /> : null;
}
