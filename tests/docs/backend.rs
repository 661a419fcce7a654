//! `docs/backend.md` contains the program that `tests/cluster/access/backend.rs` runs.

use super::{read, settle_block};

#[test]
fn page_contains_the_back_end_that_is_run() {
    let program = read("tests/third_party/backend/backend.py");
    settle_block("docs/backend.md", "backend.py", &format!("```python\n{program}```\n"));
}
