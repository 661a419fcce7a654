//! `docs/search.md` contains the program that `tests/process/search` runs.

use super::{read, settle_block};

#[test]
fn page_contains_the_index_that_is_run() {
    let program = read("examples/search/search.py");
    settle_block("docs/search.md", "search.py", &format!("```python\n{program}```\n"));
}
