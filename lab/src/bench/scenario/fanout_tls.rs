//! Group fan-out over TLS, compared with a loop over as many sockets without TLS, and with loops over OpenSSL and
//! uWebSockets where these are installed.

use super::{
    Side, Sink, each,
    fanout::{QUICK_MEMBERS, node, order},
    load, people, turns,
};
use crate::bench::{
    Args, c_program,
    child::Launcher,
    credentials::Credentials,
    orders::{Outcome, Peer},
    report::{FigureTarget, Section},
    wire::BenchTransport,
};
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};

/// Most connections, so that no process comes near the usual limit of 20,000 descriptors.
const MEMBERS_MAX: usize = 18_900;

/// Names of the sides that are always measured, in the order of their turns.
const SIDES: [&str; 2] = ["raw loop without TLS", "tidegate over TLS"];

/// Loop with TLS that a node is compared with, if it can be built.
struct Rival {
    name: &'static str,
    /// The program, or why there is none.
    program: Result<PathBuf, String>,
    /// The only transport that it has; `None` if it has all.
    transport: Option<BenchTransport>,
}

impl Rival {
    fn all(launcher: &Launcher, uwebsockets: Option<&Path>) -> [Self; 2] {
        let directory = &launcher.directory;
        [
            Self { name: "raw OpenSSL loop", program: c_program::openssl(directory), transport: None },
            Self {
                name: "uWebSockets over TLS",
                program: c_program::uwebsockets(directory, uwebsockets),
                transport: Some(BenchTransport::Ws),
            },
        ]
    }

    /// Returns the program, or why it is not measured over this transport.
    fn program(&self, transport: BenchTransport) -> Result<&Path, String> {
        match self.transport {
            Some(only) if only != transport => Err(format!("it speaks {} only", only.name())),
            _ => self.program.as_deref().map_err(Clone::clone),
        }
    }

    /// Starts the program.
    fn start(
        &self,
        launcher: &Launcher,
        program: &Path,
        credentials: &Credentials,
        size: usize,
        transport: BenchTransport,
    ) -> Result<Side> {
        let files = [program.to_owned(), credentials.certificate(), credentials.key()];
        let [program, certificate, key] = files.map(|file| file.to_string_lossy().into_owned());
        let server = launcher.raw(&["hold", &program, &certificate, &key])?;
        let control = server.second.clone();
        let peer = match self.transport {
            Some(_) => Peer::WebSocketSink { control },
            None => Peer::Sink { control },
        };
        Side::of(launcher, server, peer, transport, size)
    }
}

/// Adds one section for each transport and number of members. `uwebsockets` is the folder of the library with uWebSockets.
pub(super) fn run(
    launcher: &Launcher,
    args: &Args,
    members: &[usize],
    uwebsockets: Option<&Path>,
    out: Sink<'_>,
) -> Result<()> {
    ensure!(!args.raw_twice, "--raw-twice compares loops without TLS: leave --tls out");
    let quick = [QUICK_MEMBERS];
    let members = if args.quick { &quick } else { members };
    ensure!(members.iter().all(|members| *members <= MEMBERS_MAX), "at most {MEMBERS_MAX} members over TLS");
    let credentials = Credentials::create(launcher)?;
    let rivals = Rival::all(launcher, uwebsockets);
    for &members in members {
        for &transport in &args.transport {
            out(compare(launcher, args, &credentials, &rivals, members, transport)?);
        }
    }
    Ok(())
}

fn compare(
    launcher: &Launcher,
    args: &Args,
    credentials: &Credentials,
    rivals: &[Rival],
    members: usize,
    transport: BenchTransport,
) -> Result<Section> {
    let over_tls = credentials.with_tls(launcher);
    let mut sides = vec![Side::raw_fanout(launcher, transport, args.size)?];
    sides[0].connect(members, 1, None)?;
    let mut names = SIDES.to_vec();
    let (mut others, mut notes) = (Vec::new(), Vec::new());
    for rival in rivals {
        match rival.program(transport) {
            Ok(program) => {
                let mut side = rival.start(&over_tls, program, credentials, args.size, transport)?;
                side.connect(members, 1, None)?;
                others.push(side);
                names.push(rival.name);
            }
            Err(why) => notes.push(format!("Not measured, {}: {why}.", rival.name)),
        }
    }
    sides.push(node(&over_tls, args, 1, members, transport)?);
    sides.extend(others);
    let order = &order(args, members);
    let mut asks: Vec<_> = sides.iter_mut().map(|side| move || side.ask(order)).collect();
    let mut asks: Vec<&mut dyn FnMut() -> Result<Outcome>> =
        asks.iter_mut().map(|ask| ask as &mut dyn FnMut() -> Result<Outcome>).collect();
    let outcomes = turns(args.rounds, &mut asks)?;
    let title = format!("Fan-out over TLS to {members} members, {} B, {}", args.size, transport.name());
    let mut section = Section::new(title);
    figures(&mut section, &names, &outcomes);
    notes.into_iter().for_each(|note| section.note(note));
    people::lag(&mut section, "of all members", &outcomes[1]);
    load(&mut section, &outcomes[1]);
    Ok(section)
}

/// Adds the figures of rounds of the plain loop, of a node, and of the other loops that were measured, by their names.
fn figures(section: &mut Section, names: &[&str], outcomes: &[Vec<Outcome>]) {
    let cpu: Vec<Vec<f64>> = outcomes.iter().map(|rounds| each(rounds, Outcome::cpu_us)).collect();
    let rates: Vec<Vec<f64>> = outcomes.iter().map(|rounds| each(rounds, Outcome::rate)).collect();
    let target = Some(FigureTarget::AtMost(1.15));
    section.ratio(
        "server CPU per delivery, tidegate over TLS / raw loop without TLS",
        &cpu[1],
        &cpu[0],
        target,
    );
    for (name, other) in names.iter().zip(&cpu).skip(SIDES.len()) {
        section.ratio(&format!("the same, tidegate over TLS / {name}"), &cpu[1], other, None);
        section.ratio(&format!("the same, {name} / raw loop without TLS"), other, &cpu[0], None);
    }
    for (name, values) in names.iter().zip(cpu) {
        section.rounds(&format!("server CPU per delivery, {name}"), values, "µs", None);
    }
    for (name, values) in names.iter().zip(rates) {
        section.rounds(&format!("deliveries, {name}"), values, "/s", None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_loops_have_figures_only_when_they_were_measured() {
        let rounds =
            |cpu_us: u64| vec![Outcome { count: 10, server_cpu_ns: cpu_us * 10_000, ..Outcome::default() }];
        let of = |others: &[&'static str], outcomes: &[Vec<Outcome>]| {
            let mut section = Section::new("x");
            figures(&mut section, &[&SIDES, others].concat(), outcomes);
            section
        };
        let two = of(&[], &[rounds(4), rounds(5)]);
        assert!((two.figures[0].value - 1.25).abs() < 1e-9 && two.figures[0].met == Some(false));
        assert!(!two.markdown().contains("OpenSSL"), "{}", two.markdown());
        let three = of(&["raw OpenSSL loop"], &[rounds(4), rounds(4), rounds(8)]);
        assert!((three.figures[1].value - 0.5).abs() < 1e-9 && three.figures[0].met == Some(true));
        assert!((three.figures[2].value - 2.0).abs() < 1e-9, "{}", three.markdown());
        let four = of(&["raw OpenSSL loop", "uWebSockets"], &[rounds(4), rounds(4), rounds(8), rounds(16)]);
        assert!((four.figures[3].value - 0.25).abs() < 1e-9, "{}", four.markdown());
    }

    #[test]
    fn rival_is_measured_over_its_transport_alone() {
        let rival = |transport| Rival { name: "x", program: Ok("/p".into()), transport };
        assert!(rival(None).program(BenchTransport::Tcp).is_ok());
        let why = rival(Some(BenchTransport::Ws)).program(BenchTransport::Tcp).unwrap_err();
        assert_eq!(why, "it speaks WebSocket only");
        assert!(rival(Some(BenchTransport::Ws)).program(BenchTransport::Ws).is_ok());
    }
}
