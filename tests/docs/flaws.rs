//! `docs/internals/flaws.md`: every flaw has a line, and the named tests exist.

use super::read;

const PAGE: &str = "docs/internals/flaws.md";

/// Number of numbered flaws.
const FLAWS: usize = 88;

/// Returns the faults of the page; `source` gives the text of a file.
fn problems(page: &str, source: impl Fn(&str) -> String) -> Vec<String> {
    let mut problems = Vec::new();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| S")).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        (cells[0].to_owned(), cells.get(2).copied().unwrap_or_default().to_owned())
    });
    let rows: Vec<(String, String)> = rows.collect();
    let numbers: Vec<String> = rows.iter().map(|(number, _)| number.clone()).collect();
    let wanted: Vec<String> = (1..=FLAWS).map(|number| number.to_string()).collect();
    if numbers != wanted {
        problems.push(format!("the numbers are {numbers:?}"));
    }
    for (number, tests) in &rows {
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            problems.push(format!("S{number} names no test"));
        }
        for test in named {
            let Some((file, function)) = test.split_once("::") else {
                problems.push(format!("S{number}: {test} is no file::function"));
                continue;
            };
            let text = source(file);
            // A case of a suite is a function; a planted fault is a line of a macro.
            if !text.contains(&format!("fn {function}("))
                && !text.contains(&format!("    {function} Fault::"))
            {
                problems.push(format!("S{number}: there is no {function} in {file}"));
            }
        }
    }
    problems
}

#[test]
fn each_flaw_has_an_existing_test() {
    assert_eq!(problems(&read(PAGE), read), Vec::<String>::new());
}

#[test]
fn missing_test_on_the_page_is_found() {
    let page = read(PAGE);
    let source = |_: &str| "fn other() {}".to_owned();
    assert!(problems(&page, source).len() > FLAWS / 2);
    let later =
        |line: &str| if line.starts_with("| S33") { "| S33 | a script | later |" } else { line }.to_owned();
    let without: Vec<String> = page.lines().map(later).collect();
    assert_eq!(problems(&without.join("\n"), read), ["S33 names no test"]);
    let short: Vec<&str> = page.lines().filter(|line| !line.starts_with("| S12")).collect();
    assert!(problems(&short.join("\n"), read)[0].starts_with("the numbers"));
}
