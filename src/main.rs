//! The `tidegate` binary.
fn main() {}
