//! Logins by the algorithm of the token and the TLS handshake, compared with loops that verify nothing.

use super::{Side, Sink, each, load, login, turns};
use crate::bench::{
    Args,
    child::Launcher,
    credentials::Credentials,
    login_kind::{Chosen, LoginAlgorithm, LoginHandshake, name},
    orders::{Order, Outcome, Peer},
    report::{FigureTarget, Section, median},
    wire::BenchTransport,
};
use anyhow::{Result, ensure};

/// Logins of a round of each kind by default.
const COUNT: usize = 2_000;

/// Parameters of the scenario.
pub(super) struct Load<'a> {
    pub(super) algorithms: &'a [LoginAlgorithm],
    pub(super) handshakes: &'a [LoginHandshake],
    pub(super) count: Option<usize>,
    pub(super) parallel: usize,
}

impl<'a> Load<'a> {
    /// Creates the parameters; HS256 and no TLS are the defaults.
    pub(super) fn new(
        algorithms: Option<&'a Chosen<LoginAlgorithm>>,
        handshakes: Option<&'a Chosen<LoginHandshake>>,
        count: Option<usize>,
        parallel: usize,
    ) -> Self {
        let algorithms = algorithms.map_or(&[LoginAlgorithm::Hs256][..], |chosen| &chosen.0);
        let handshakes = handshakes.map_or(&[LoginHandshake::None][..], |chosen| &chosen.0);
        Self { algorithms, handshakes, count, parallel }
    }
}

/// Outcomes of one handshake: those of the raw loop, and of each algorithm.
struct Rounds {
    handshake: LoginHandshake,
    raw: Vec<Outcome>,
    ours: Vec<(LoginAlgorithm, Vec<Outcome>)>,
}

/// Adds one section, for TCP.
pub(super) fn run(launcher: &Launcher, args: &Args, what: &Load<'_>, out: Sink<'_>) -> Result<()> {
    ensure!(!args.raw_twice, "--raw-twice compares loops: leave --alg and --tls out");
    let count = if args.quick { 100 } else { what.count.unwrap_or(COUNT) };
    let credentials = Credentials::create(launcher)?;
    let over_tls = credentials.with_tls(launcher);
    let nodes = credentials.with_keys(&over_tls, "login-TCP")?;
    let mut node = Side::tidegate(&nodes, "login", 1, BenchTransport::Tcp, 0)?;
    let order = |handshake, algorithm| Order::Logins { count, parallel: what.parallel, handshake, algorithm };
    let one = Order::Logins {
        count: 1,
        parallel: 1,
        handshake: LoginHandshake::None,
        algorithm: LoginAlgorithm::Hs256,
    };
    let reply = node.ask(&one)?.reply_bytes;
    let mut all = Vec::new();
    for &handshake in what.handshakes {
        let mut raw = match handshake {
            LoginHandshake::None => login::raw(launcher, reply)?,
            LoginHandshake::Full | LoginHandshake::Resumed => raw(&over_tls, &credentials, reply)?,
        };
        // The sides take turns within one handshake: the ratio compares neighbours.
        let node = std::cell::RefCell::new(&mut node);
        let mut asks: Vec<Box<dyn FnMut() -> Result<Outcome> + '_>> =
            vec![Box::new(|| raw.ask(&order(handshake, LoginAlgorithm::Hs256)))];
        for &algorithm in what.algorithms {
            let (node, order) = (&node, order(handshake, algorithm));
            asks.push(Box::new(move || node.borrow_mut().ask(&order)));
        }
        let mut sides: Vec<&mut dyn FnMut() -> Result<Outcome>> = Vec::new();
        for ask in &mut asks {
            sides.push(ask.as_mut());
        }
        let mut outcomes = turns(args.rounds, &mut sides)?.into_iter();
        let raw = outcomes.next().unwrap_or_default();
        all.push(Rounds { handshake, raw, ours: what.algorithms.iter().copied().zip(outcomes).collect() });
    }
    let mut section = Section::new(format!("Logins by kind, {} at a time, TCP", what.parallel));
    all.iter().for_each(|rounds| figures(&mut section, rounds));
    section.note(
        "Raw: accept, the handshake with the library and the certificate of the node, read one request, write a \
         reply as long as that of a login. The node offers TLS on its port in all of them.",
    );
    section.note(
        "Every token is new, so no verified one is in the node's cache. The load generator checks of each handshake \
         whether it was full or resumed.",
    );
    if let Some(ours) = slowest(&all) {
        load(&mut section, ours);
    }
    out(section);
    Ok(())
}

fn raw(launcher: &Launcher, credentials: &Credentials, reply: usize) -> Result<Side> {
    let (reply_bytes, certificate, key) = (reply.to_string(), credentials.certificate(), credentials.key());
    let (certificate, key) = (certificate.to_string_lossy(), key.to_string_lossy());
    let arguments = ["raw-accept", "--reply", &reply_bytes, "--certificate", &certificate, "--key", &key];
    Side::raw_reply(launcher, &arguments, Peer::Reply { bytes: reply }, BenchTransport::Tcp)
}

/// Adds the figures of one handshake.
fn figures(section: &mut Section, rounds: &Rounds) {
    let handshake = match rounds.handshake {
        LoginHandshake::None => "no TLS".to_owned(),
        kind => format!("{} TLS handshake", name(&kind)),
    };
    let raw_us = each(&rounds.raw, Outcome::cpu_us);
    for (algorithm, outcomes) in &rounds.ours {
        let what = format!("{}, {handshake}", name(algorithm));
        let our_us = each(outcomes, Outcome::cpu_us);
        // The target of the scenario without options, which has the same two sides.
        let is_plain = (*algorithm, rounds.handshake) == (LoginAlgorithm::Hs256, LoginHandshake::None);
        let target = is_plain.then_some(FigureTarget::AtLeast(0.5));
        let ratio = format!("logins per server CPU second, {what}, tidegate / raw");
        section.ratio(&ratio, &raw_us, &our_us, target);
        let per_second = our_us.iter().map(|us| 1e6 / us).collect();
        section.rounds(&format!("logins per server CPU second, {what}"), per_second, "/s", None);
        section.rounds(&format!("logins, {what}"), each(outcomes, Outcome::rate), "/s", None);
        section.rounds(&format!("server CPU per login, {what}"), our_us, "µs", None);
    }
    section.rounds(&format!("server CPU per login, {handshake}, raw"), raw_us, "µs", None);
    section.rounds(&format!("logins, {handshake}, raw"), each(&rounds.raw, Outcome::rate), "/s", None);
}

/// Returns the outcomes of the node in which it waited longest for its CPU.
fn slowest(all: &[Rounds]) -> Option<&[Outcome]> {
    let kinds = all.iter().flat_map(|rounds| &rounds.ours).map(|(_, outcomes)| &outcomes[..]);
    kinds.max_by(|one, other| {
        median(&each(one, Outcome::server_waits)).total_cmp(&median(&each(other, Outcome::server_waits)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_its_ratio_and_only_plain_hs256_a_target() {
        let rounds = |cpu_us: u64| {
            vec![Outcome { count: 1, server_cpu_ns: cpu_us * 1_000, wall_ns: 1, ..Outcome::default() }]
        };
        let of = |handshake| {
            let mut section = Section::new("x");
            let ours = vec![(LoginAlgorithm::Hs256, rounds(200)), (LoginAlgorithm::Rs256, rounds(400))];
            figures(&mut section, &Rounds { handshake, raw: rounds(80), ours });
            section
        };
        let section = of(LoginHandshake::None);
        let ratios: Vec<_> = section.figures.iter().filter(|it| it.unit == "x").collect();
        assert_eq!(ratios.len(), 2);
        assert!((ratios[0].value - 0.4).abs() < 1e-9 && ratios[0].met == Some(false));
        assert!((ratios[1].value - 0.2).abs() < 1e-9 && ratios[1].met.is_none());
        let section = of(LoginHandshake::Resumed);
        let first = &section.figures[0];
        assert_eq!(first.what, "logins per server CPU second, HS256, resumed TLS handshake, tidegate / raw");
        assert!(first.met.is_none());
        let per_second = section.figures.iter().find(|it| it.unit == "/s").unwrap();
        assert!((per_second.value - 5_000.0).abs() < 1e-9, "{}", per_second.value);
    }
}
