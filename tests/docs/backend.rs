//! `docs/backend.md` and `docs/webhooks.md` contain the program that `tests/cluster/access/backend.rs` runs, and its receiver.

use super::{read, settle_block};

#[test]
fn page_contains_the_back_end_that_is_run() {
    let program = read("tests/third_party/backend/backend.py");
    settle_block("docs/backend.md", "backend.py", &format!("```python\n{program}```\n"));
}

#[test]
fn page_contains_the_receiver_that_is_run() {
    let program = read("tests/third_party/backend/webhooks.py");
    settle_block("docs/webhooks.md", "webhooks.py", &format!("```python\n{program}```\n"));
}
