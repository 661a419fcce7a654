//! Results of a run: ratios first, then absolute figures, as Markdown and as JSON.

use super::host::{Environment, date};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};

/// The target of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureTarget {
    /// The figure is at most this.
    AtMost(f64),
    /// The figure is at least this.
    AtLeast(f64),
}

impl FigureTarget {
    fn met(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }
}

impl fmt::Display for FigureTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "≤ {bound}"),
            Self::AtLeast(bound) => write!(f, "≥ {bound}"),
        }
    }
}

/// One number with its name and unit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the measured quantity.
    pub what: String,
    /// Value: the median if there were rounds.
    pub value: f64,
    /// Unit; `x` stands for a ratio.
    pub unit: String,
    /// Values of the rounds, if there were any.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub rounds: Vec<f64>,
    /// Target, if there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<FigureTarget>,
    /// Whether the target was met.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub met: Option<bool>,
}

/// The figures of a scenario.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Section {
    /// Title that describes the scenario.
    pub title: String,
    /// Figures; those with a target are printed first.
    pub figures: Vec<Figure>,
    /// Notes that a reader needs to judge the figures.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// Report of a whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchReport {
    /// Environment of the run.
    pub environment: Environment,
    /// Sections, one for each scenario.
    pub sections: Vec<Section>,
}

/// Returns the median; of an even number of values it is the mean of the two in the middle.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

impl Section {
    /// Creates a section without figures.
    pub(super) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Adds a figure measured once.
    pub(super) fn one(&mut self, what: &str, value: f64, unit: &str, target: Option<FigureTarget>) {
        self.add(what, value, unit, Vec::new(), target);
    }

    /// Adds the median of rounds.
    pub(super) fn rounds(&mut self, what: &str, rounds: Vec<f64>, unit: &str, target: Option<FigureTarget>) {
        self.add(what, median(&rounds), unit, rounds, target);
    }

    /// Adds the ratio of two medians; its rounds are the ratios of neighbouring rounds.
    pub(super) fn ratio(&mut self, what: &str, over: &[f64], under: &[f64], target: Option<FigureTarget>) {
        let rounds = over.iter().zip(under).map(|(over, under)| over / under).collect();
        self.add(what, median(over) / median(under), "x", rounds, target);
    }

    fn add(&mut self, what: &str, value: f64, unit: &str, rounds: Vec<f64>, target: Option<FigureTarget>) {
        let met = target.map(|target| target.met(value));
        self.figures.push(Figure { what: what.into(), value, unit: unit.into(), rounds, target, met });
    }

    /// Adds a note.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Returns the section as Markdown, with targeted figures first.
    pub(super) fn markdown(&self) -> String {
        let mut out = format!("## {}\n\n", self.title);
        out.push_str("| figure | median | target | | rounds |\n|---|---|---|---|---|\n");
        let (held, free): (Vec<_>, Vec<_>) = self.figures.iter().partition(|figure| figure.target.is_some());
        for figure in held.into_iter().chain(free) {
            let rounds: Vec<String> = figure.rounds.iter().map(|value| short(*value)).collect();
            let target = figure.target.map_or(String::new(), |target| target.to_string());
            let met = figure.met.map_or("", |met| if met { "met" } else { "**missed**" });
            let value = short(figure.value);
            // Writing to a string cannot fail.
            writeln!(
                out,
                "| {} | {value} {} | {target} | {met} | {} |",
                figure.what,
                figure.unit,
                rounds.join(" ")
            )
            .ok();
        }
        for note in &self.notes {
            writeln!(out, "\n- {note}").ok();
        }
        out
    }
}

impl BenchReport {
    /// Returns whether every figure with a target meets it.
    pub(super) fn all_met(&self) -> bool {
        self.sections.iter().flat_map(|section| &section.figures).all(|figure| figure.met != Some(false))
    }

    /// Returns the environment as Markdown.
    pub(super) fn head(&self) -> String {
        let e = &self.environment;
        format!(
            "# tidegate-lab bench\n\ntidegate {}, {} build · Linux {} · {} ({} cores, {} MiB) · servers on CPU {:?}, \
             load on CPU {:?} · {} file descriptors a process · lo MTU {} · {}\n",
            e.version,
            e.build,
            e.kernel,
            e.cpu,
            e.cores,
            e.memory_mib,
            e.server_cpus,
            e.client_cpus,
            e.fd_limit,
            e.loopback_mtu,
            date(e.started),
        )
    }

    /// Returns the whole report as Markdown.
    pub(super) fn markdown(&self) -> String {
        let mut out = self.head();
        for section in &self.sections {
            out.push('\n');
            out.push_str(&section.markdown());
        }
        writeln!(out, "\nSteal during the run: {:.2} %.", self.environment.steal_percent).ok();
        out
    }
}

/// Formats a value with about three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        big if big >= 1000.0 => format!("{value:.0}"),
        middle if middle >= 100.0 => format!("{value:.1}"),
        middle if middle >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_targets() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        let mut section = Section::new("x");
        section.one("free", 1.0, "µs", None);
        section.ratio("held", &[1.0, 2.0, 3.0], &[1.0, 1.0, 1.0], Some(FigureTarget::AtMost(1.05)));
        assert_eq!(section.figures[1].met, Some(false));
        let text = section.markdown();
        assert!(text.find("held") < text.find("free"), "{text}");
        assert!(text.contains("**missed**"), "{text}");
    }
}
