//! `docs/internals/flaws.md`: every flaw has a line, and the tests that a line names are there.

use super::read;

const PAGE: &str = "docs/internals/flaws.md";

/// How many flaws are known by number.
const FLAWS: usize = 37;

/// What is wrong with the page; `source` gives the text of a file.
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
fn each_flaw_has_a_test_that_is_there() {
    assert_eq!(problems(&read(PAGE), read), Vec::<String>::new());
}

#[test]
fn a_page_that_names_a_test_that_is_not_there_is_noticed() {
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
