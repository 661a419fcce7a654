//! Charts and the table of the simulated week in the docs: written with `TIDEGATE_UPDATE_DOCS=1`, otherwise compared.

use std::{env, fmt::Write as _, fs, path::PathBuf};

use super::week::FAULT;

/// Page that shows the week.
const PAGE: &str = "docs/thresholds.md";

/// Seconds that one point of the chart of the week stands for.
const STEP: u64 = 1_800;

/// Seconds before and after the fault in its chart.
const AROUND: u64 = 120;

const WIDTH: f64 = 880.0;
const LEFT: f64 = 60.0;

/// Second of the simulation.
pub(super) struct Second {
    pub(super) of_week: u64,
    pub(super) offered: f64,
    pub(super) admitted: f64,
    pub(super) capacity: f64,
    pub(super) wait: f64,
    pub(super) factor: f64,
}

/// Points of the charts.
#[derive(Debug, Default)]
pub(super) struct Series {
    offered: Vec<f64>,
    admitted: Vec<f64>,
    capacity: Vec<f64>,
    /// Smallest load factor of each point.
    factor: Vec<f64>,
    /// Queue and load factor in each second around the fault.
    fault_wait: Vec<f64>,
    fault_factor: Vec<f64>,
}

impl Series {
    pub(super) fn handle_second(&mut self, second: &Second) {
        let point = (second.of_week / STEP) as usize;
        if self.offered.len() <= point {
            for series in [&mut self.offered, &mut self.admitted, &mut self.capacity] {
                series.push(0.0);
            }
            self.factor.push(f64::MAX);
        }
        self.offered[point] += second.offered / STEP as f64;
        self.admitted[point] += second.admitted / STEP as f64;
        self.capacity[point] += second.capacity / STEP as f64;
        self.factor[point] = self.factor[point].min(second.factor);
        if (FAULT.start - AROUND..FAULT.end + AROUND).contains(&second.of_week) {
            self.fault_wait.push(second.wait);
            self.fault_factor.push(second.factor);
        }
    }
}

/// Part of a chart with axes of its own.
struct Panel {
    top: f64,
    height: f64,
    most: f64,
}

impl Panel {
    fn y(&self, value: f64) -> f64 {
        self.top + self.height * (1.0 - value.min(self.most) / self.most)
    }

    /// Draws the frame with a title and lines at these values.
    fn frame(&self, svg: &mut String, title: &str, ticks: &[(f64, &str)]) {
        let Self { top, height, .. } = self;
        writeln!(svg, r#"<text x="{LEFT}" y="{:.0}" class="title">{title}</text>"#, top - 8.0).unwrap();
        writeln!(
            svg,
            r#"<rect x="{LEFT}" y="{top:.0}" width="{WIDTH}" height="{height:.0}" class="frame"/>"#
        )
        .unwrap();
        for (value, label) in ticks {
            let y = self.y(*value);
            writeln!(
                svg,
                r#"<line x1="{LEFT}" x2="{:.0}" y1="{y:.0}" y2="{y:.0}" class="grid"/>"#,
                LEFT + WIDTH
            )
            .unwrap();
            writeln!(svg, r#"<text x="{:.0}" y="{:.0}" class="y">{label}</text>"#, LEFT - 6.0, y + 4.0)
                .unwrap();
        }
    }

    fn line(&self, svg: &mut String, class: &str, values: &[f64]) {
        let scale = WIDTH / values.len().max(1) as f64;
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (n, value) in values.iter().enumerate() {
            let x = (LEFT + n as f64 * scale).round();
            // Several seconds may share a pixel.
            if points.last().is_none_or(|(last, _)| *last < x) {
                points.push((x, self.y(*value)));
            }
        }
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.0},{y:.0}")).collect();
        writeln!(svg, r#"<polyline class="{class}" points="{}"/>"#, points.join(" ")).unwrap();
    }
}

fn legend(svg: &mut String, y: f64, entries: &[(&str, &str)]) {
    for (n, (class, label)) in entries.iter().enumerate() {
        let x = LEFT + 250.0 * n as f64;
        writeln!(svg, r#"<line x1="{x:.0}" x2="{:.0}" y1="{y:.0}" y2="{y:.0}" class="{class}"/>"#, x + 26.0)
            .unwrap();
        writeln!(svg, r#"<text x="{:.0}" y="{:.0}" class="x">{label}</text>"#, x + 32.0, y + 4.0).unwrap();
    }
}

fn mark(svg: &mut String, at: f64, y: f64, label: &str) {
    writeln!(svg, r#"<text x="{:.0}" y="{y:.0}" class="x">{label}</text>"#, LEFT + WIDTH * at).unwrap();
}

fn svg(height: f64, title: &str, body: &str) -> String {
    let width = LEFT + WIDTH + 20.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n\
         <title>{title}</title>\n<style>\n\
         text {{ font: 12px sans-serif; fill: #333 }} .title {{ font-weight: bold }} .y {{ text-anchor: end }}\n\
         .frame {{ fill: none; stroke: #999 }} .grid {{ stroke: #ddd }} polyline, line {{ fill: none; stroke-width: 1.5 }}\n\
         .offered {{ stroke: #999 }} .admitted {{ stroke: #0a6 }} .capacity {{ stroke: #c33; stroke-dasharray: 5 3 }}\n\
         .factor {{ stroke: #26c }} .fixed {{ stroke: #c33 }}\n</style>\n\
         <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// Returns the chart of the week with limits that follow.
pub(super) fn week(series: &Series) -> String {
    let mut body = String::new();
    let units = Panel { top: 30.0, height: 220.0, most: 25_000.0 };
    let ticks = [(5_000.0, "5,000"), (10_000.0, "10,000"), (15_000.0, "15,000"), (20_000.0, "20,000")];
    units.frame(&mut body, "Units per second, means of 30 minutes", &ticks);
    units.line(&mut body, "offered", &series.offered);
    units.line(&mut body, "capacity", &series.capacity);
    units.line(&mut body, "admitted", &series.admitted);
    let factor = Panel { top: 330.0, height: 120.0, most: 1.25 };
    factor.frame(
        &mut body,
        "Load factor, smallest of 30 minutes",
        &[(0.25, "0.25"), (0.5, "0.5"), (1.0, "1")],
    );
    factor.line(&mut body, "factor", &series.factor);
    for (n, day) in ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].into_iter().enumerate() {
        mark(&mut body, n as f64 / 7.0, 266.0, day);
        mark(&mut body, n as f64 / 7.0, 466.0, day);
    }
    mark(&mut body, 2.43 / 7.0, 158.0, "fault");
    mark(&mut body, 3.12 / 7.0, 120.0, "flood");
    mark(&mut body, 5.55 / 7.0, 60.0, "crowd");
    legend(
        &mut body,
        286.0,
        &[("offered", "offered"), ("capacity", "capacity of the node"), ("admitted", "admitted")],
    );
    svg(480.0, "A simulated week with limits that follow the load", &body)
}

/// Returns the chart of the fault, with fixed limits and with those that follow.
pub(super) fn fault(fixed: &Series, controlled: &Series) -> String {
    let mut body = String::new();
    let wait = Panel { top: 30.0, height: 180.0, most: 5.0 };
    let seconds: Vec<(f64, &str)> =
        vec![(1.0, "1 s"), (2.0, "2 s"), (3.0, "3 s"), (4.0, "4 s"), (5.0, "5 s")];
    wait.frame(&mut body, "Queue of the node", &seconds);
    wait.line(&mut body, "fixed", &fixed.fault_wait);
    wait.line(&mut body, "admitted", &controlled.fault_wait);
    let factor = Panel { top: 270.0, height: 120.0, most: 1.25 };
    factor.frame(&mut body, "Load factor", &[(0.25, "0.25"), (0.5, "0.5"), (1.0, "1")]);
    factor.line(&mut body, "factor", &controlled.fault_factor);
    let whole = (FAULT.end - FAULT.start + 2 * AROUND) as f64;
    for (minute, label) in [(0_u64, "09:45, half of the capacity"), (15, "10:00"), (30, "10:15")] {
        mark(&mut body, (AROUND + minute * 60) as f64 / whole, 406.0, label);
    }
    legend(&mut body, 228.0, &[("fixed", "fixed limits"), ("admitted", "limits that follow")]);
    svg(420.0, "The fault of the simulated week", &body)
}

fn file(path: &str) -> PathBuf {
    let of_crate = env::var_os("CARGO_MANIFEST_DIR").map_or(env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    of_crate.join("..").join(path)
}

/// Returns the text with `#` in the place of each number, and the numbers, each with the value of its last digit.
fn numbers(text: &str) -> (String, Vec<(f64, f64)>) {
    let (mut rest, mut pattern, mut numbers) = (text, String::new(), Vec::new());
    while let Some(begin) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(begin);
        let end = from.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(from.len());
        let (number, after) = from.split_at(end);
        match number.parse() {
            Ok(value) => {
                let decimals = number.split_once('.').map_or(0, |(_, part)| part.len());
                numbers.push((value, 0.1_f64.powi(i32::try_from(decimals).unwrap())));
                pattern += &format!("{before}#");
            }
            Err(_) => pattern += &format!("{before}{number}"),
        }
        rest = after;
    }
    (pattern + rest, numbers)
}

/// Returns whether two texts are the same except for the last digits of numbers: not all platforms compute
/// cosines and exponentials alike.
fn is_close(a: &str, b: &str) -> bool {
    let ((a, a_numbers), (b, b_numbers)) = (numbers(a), numbers(b));
    let is_near = |((a, digit), (b, _)): (&(f64, f64), &(f64, f64))| (a - b).abs() < digit * 1.5;
    a == b && a_numbers.iter().zip(&b_numbers).all(is_near)
}

#[test]
fn charts_are_compared_by_their_numbers() {
    for (a, b, expected) in [
        ("x 10,20 y", "x 11,19 y", true),
        ("x 10,20 y", "x 12,20 y", false),
        ("x 10,20 y", "x 10,20 z", false),
        ("x 10,20 y", "x 10,20 30 y", false),
        ("1.99 s", "2.00 s", true),
        ("1.99 s", "2.01 s", false),
        ("v1.2.3.", "v1.2.4.", false),
    ] {
        assert_eq!(is_close(a, b), expected, "{a} and {b}");
    }
}

/// Writes the file of the repository if requested, otherwise fails if it differs.
pub(super) fn check_file(path: &str, text: &str) {
    if env::var("TIDEGATE_UPDATE_DOCS").is_ok_and(|value| value == "1") {
        fs::write(file(path), text).unwrap();
    }
    let now = fs::read_to_string(file(path)).unwrap_or_default();
    assert!(
        is_close(&now, text),
        "{path} differs from the simulation: run this test with TIDEGATE_UPDATE_DOCS=1"
    );
}

/// Does the same with the table of the page.
pub(super) fn check_table(table: &str) {
    let (begin, end) = ("<!-- week -->\n", "<!-- /week -->\n");
    let page = fs::read_to_string(file(PAGE)).unwrap();
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    check_file(PAGE, &format!("{before}{begin}{table}{end}{after}"));
}
