//! Group fan-out over TLS, compared with loops over as many sockets without TLS and with OpenSSL.

use super::{
    Side, Sink, each,
    fanout::{QUICK_MEMBERS, node, order},
    load, people, turns,
};
use crate::bench::{
    Args,
    child::Launcher,
    credentials::Credentials,
    openssl,
    orders::{Outcome, Peer},
    report::{FigureTarget, Section},
    wire::BenchTransport,
};
use anyhow::{Result, ensure};
use std::path::Path;

/// Most connections, so that no process comes near the usual limit of 20,000 descriptors.
const MEMBERS_MAX: usize = 18_900;

/// Adds one section for each transport and number of members.
pub(super) fn run(launcher: &Launcher, args: &Args, members: &[usize], out: Sink<'_>) -> Result<()> {
    ensure!(!args.raw_twice, "--raw-twice compares loops without TLS: leave --tls out");
    let quick = [QUICK_MEMBERS];
    let members = if args.quick { &quick } else { members };
    ensure!(members.iter().all(|members| *members <= MEMBERS_MAX), "at most {MEMBERS_MAX} members over TLS");
    let credentials = Credentials::create(launcher)?;
    let openssl = openssl::build(&launcher.directory);
    for &members in members {
        for &transport in &args.transport {
            out(compare(launcher, args, &credentials, openssl.as_deref(), members, transport)?);
        }
    }
    Ok(())
}

fn compare(
    launcher: &Launcher,
    args: &Args,
    credentials: &Credentials,
    openssl: Result<&Path, &String>,
    members: usize,
    transport: BenchTransport,
) -> Result<Section> {
    let over_tls = credentials.with_tls(launcher);
    let mut plain = Side::raw_fanout(launcher, transport, args.size)?;
    plain.connect(members, 1, None)?;
    let mut raw_tls = match openssl {
        Ok(program) => Some(raw_openssl(&over_tls, program, credentials, args.size, transport)?),
        Err(_) => None,
    };
    if let Some(raw_tls) = &mut raw_tls {
        raw_tls.connect(members, 1, None)?;
    }
    let mut ours = node(&over_tls, args, 1, members, transport)?;
    let order = order(args, members);
    let (mut ask_plain, mut ask_ours) = (|| plain.ask(&order), || ours.ask(&order));
    let mut ask_raw_tls = raw_tls.as_mut().map(|raw_tls| || raw_tls.ask(&order));
    let mut sides: Vec<&mut dyn FnMut() -> Result<Outcome>> = vec![&mut ask_plain, &mut ask_ours];
    if let Some(ask) = &mut ask_raw_tls {
        sides.push(ask);
    }
    let outcomes = turns(args.rounds, &mut sides)?;
    let title = format!("Fan-out over TLS to {members} members, {} B, {}", args.size, transport.name());
    let mut section = Section::new(title);
    figures(&mut section, &outcomes);
    if let Err(why) = openssl {
        section.note(format!("The raw OpenSSL loop was not measured: {why}."));
    }
    section.note("uWebSockets with TLS was not measured: the bench has no server of it.");
    people::lag(&mut section, "of all members", &outcomes[1]);
    load(&mut section, &outcomes[1]);
    Ok(section)
}

fn raw_openssl(
    launcher: &Launcher,
    program: &Path,
    credentials: &Credentials,
    size: usize,
    transport: BenchTransport,
) -> Result<Side> {
    let files = [program.to_owned(), credentials.certificate(), credentials.key()];
    let [program, certificate, key] = files.map(|file| file.to_string_lossy().into_owned());
    let server = launcher.raw(&["hold", &program, &certificate, &key])?;
    let peer = Peer::Sink { control: server.second.clone() };
    Side::of(launcher, server, peer, transport, size)
}

/// Adds the figures of rounds of the plain loop, of a node, and of the OpenSSL loop if it was measured.
fn figures(section: &mut Section, outcomes: &[Vec<Outcome>]) {
    let cpu: Vec<Vec<f64>> = outcomes.iter().map(|rounds| each(rounds, Outcome::cpu_us)).collect();
    let rates: Vec<Vec<f64>> = outcomes.iter().map(|rounds| each(rounds, Outcome::rate)).collect();
    let target = Some(FigureTarget::AtMost(1.15));
    section.ratio(
        "server CPU per delivery, tidegate over TLS / raw loop without TLS",
        &cpu[1],
        &cpu[0],
        target,
    );
    if let Some(openssl) = cpu.get(2) {
        section.ratio("the same, tidegate over TLS / raw OpenSSL loop", &cpu[1], openssl, None);
        section.ratio("the same, raw OpenSSL loop / raw loop without TLS", openssl, &cpu[0], None);
    }
    let names = ["raw loop without TLS", "tidegate over TLS", "raw OpenSSL loop"];
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
    fn openssl_has_figures_only_when_it_was_measured() {
        let rounds =
            |cpu_us: u64| vec![Outcome { count: 10, server_cpu_ns: cpu_us * 10_000, ..Outcome::default() }];
        let of = |outcomes: &[Vec<Outcome>]| {
            let mut section = Section::new("x");
            figures(&mut section, outcomes);
            section
        };
        let two = of(&[rounds(4), rounds(5)]);
        assert!((two.figures[0].value - 1.25).abs() < 1e-9 && two.figures[0].met == Some(false));
        assert!(!two.markdown().contains("OpenSSL"), "{}", two.markdown());
        let three = of(&[rounds(4), rounds(4), rounds(8)]);
        assert!((three.figures[1].value - 0.5).abs() < 1e-9 && three.figures[0].met == Some(true));
        assert!((three.figures[2].value - 2.0).abs() < 1e-9, "{}", three.markdown());
    }
}
