//! Placeholder: ledger is written next.
