//! Refusals that several queries share.

use crate::{log_limit::log_limited, mail::Refusal, store::StoreError};
use tidegate_protocol::Code;

/// Returns the refusal for a failed store call, and logs the error for the operator.
pub(crate) fn store_unavailable(error: StoreError) -> Refusal {
    log_limited!(warn, %error, "store unavailable; query refused");
    (Code::StoreUnavailable, "")
}
