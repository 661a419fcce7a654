//! `tidegate demo`: a node, two bots that talk, and breaks on a schedule, each followed by a judgement.
//!
//! The node is a process of this same binary. The bots are clients over sockets: `bot` is the pure machine of one,
//! `stage` drives both, `schedule` decides what is next, and `breaks` breaks their links, their clients and the node.
//! `judge` compares what they sent, were acked and showed with the history that both pull after each break.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};

use self::{
    node::{DataDir, NodeProcess},
    play::{AUDIT_MAX, Play, RECOVERY_MAX, Scope},
    record::User,
    schedule::End,
    screen::Screen,
    stage::{Stage, Wish},
};
use super::{admin::find, up::child};
use crate::private;

mod audit;
mod bot;
mod breaks;
mod judge;
mod node;
mod past;
mod play;
mod record;
mod schedule;
mod screen;
mod stage;
mod words;

/// Time for the bots to recover after a signal, and for the last judgement then; a second signal ends both.
const AFTER_SIGNAL_MAX: Duration = Duration::from_secs(3);
/// Time for the bots to say bye.
const BYE_MAX: Duration = Duration::from_millis(700);

/// Arguments of `tidegate demo`.
#[derive(clap::Args, Debug)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Seconds from one break to the next
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    every: f64,
    /// Stop after this many seconds, and after the break that is under way; default: at Ctrl-C
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
    for_seconds: Option<f64>,
    /// Stop once each break was done this often
    #[arg(long, value_name = "COUNT", value_parser = count)]
    rounds: Option<usize>,
    /// Data directory of the node, which is kept; default: a temporary one that is removed at the end
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Client port; the admin port is the next one. 0 selects free ones; default: 7800, or free ones if it is taken
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Hide this message, counted from 1, from its receiver, to see a broken promise reported
    #[arg(long, value_name = "NTH", value_parser = count)]
    plant: Option<usize>,
}

const NOTES: &str = "\
Two bots, ada and ben, talk over WebSockets as any client does. Breaks take turns: a reset link, a
receiver that is offline, a killed node (SIGKILL) that starts again on its data, a message sent
twice, a lost ack, a client that acks nothing. After each one both bots pull what their conversation
got since the last complete comparison, at first since the start of the demo, and what was sent,
acked and shown is compared with it. After every tenth break and at the end they pull everything
since the start of the demo, and what was compared before must still be there. `lost` and `doubled`
are about acked messages, `out of order` about what a receiver was shown and what followed an ack.
Let nobody else write as ada or ben to the other: such a message counts as `never-sent`. SIGTERM and
a closed terminal stop it as Ctrl-C does.

Exit code 0 if no broken promise was found, otherwise 1, and the data is kept. It is 0 also if the
last line says that something was not checked: the bots or their histories took too long.";

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is expected".to_owned())?;
    if (0.1..=1e6).contains(&seconds) { Ok(seconds) } else { Err("0.1 to 1000000 seconds".to_owned()) }
}

fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "a number from 1 on is expected".to_owned())
}

/// Runs the demo until its end or a signal.
///
/// # Errors
/// The node can't be started, or ends by itself.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    private::close_new_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let data = DataDir::open(args.data.as_deref())?;
        let outcome = show(args, &data).await;
        let log = child::log_file(&data.path);
        if matches!(outcome, Ok(true)) || !log.exists() {
            data.remove();
        } else if data.is_temporary {
            // The terminal may be gone.
            writeln!(io::stderr(), "the data is kept; the node's log: {}", log.display()).ok();
        }
        Ok(if outcome? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// Plays with a node on a data directory; returns whether no promise was broken.
async fn show(args: &Args, data: &DataDir) -> anyhow::Result<bool> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // The end of the terminal, unless `nohup` has excluded it.
    let mut hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
    let mut stopped = async || {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
            Some(()) = async { hangup.as_mut()?.recv().await } => {}
        }
    };
    let node = tokio::select! {
        node = NodeProcess::start(&data.path, args.port) => node?,
        () = stopped() => return Ok(true),
    };
    let key = find::key(&data.path).context("the node's token key")?;
    let stage = Arc::new(Stage::new(node.addresses.client, key));
    let mut drivers = JoinSet::new();
    for user in User::BOTH {
        drivers.spawn(stage::drive(Arc::clone(&stage), user));
    }
    let mut play = Play::new(stage, node, Screen::open());
    play.every = Duration::from_secs_f64(args.every);
    play.plant = args.plant;
    let path = data.path.display().to_string();
    play.screen.greet(play.every, &play.node.addresses.admin.to_string(), &path, data.is_temporary);
    let end = End { after: args.for_seconds.map(Duration::from_secs_f64), rounds: args.rounds };
    let played = async {
        play.begin().await?;
        play.run(end).await
    };
    let (outcome, is_over) = tokio::select! {
        outcome = played => {
            let is_over = outcome.is_ok();
            (outcome, is_over)
        }
        () = stopped() => (Ok(()), false),
    };
    let limits = if is_over { [RECOVERY_MAX, AUDIT_MAX] } else { [AFTER_SIGNAL_MAX; 2] };
    tokio::select! {
        () = finish(&mut play, limits) => {}
        () = stopped() => {}
    }
    play.node.stop().await;
    drivers.shutdown().await;
    outcome?;
    Ok(play.is_good())
}

/// Returns whether the process was started with SIGHUP ignored, as by `nohup`.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Judges once more if that is possible within the limits of a recovery and of a pull, and prints the summary.
async fn finish(play: &mut Play, [recovery_max, audit_max]: [Duration; 2]) {
    play.screen.summary(play.stage.now(), &breaks::summary(play.breaks));
    for user in User::BOTH {
        play.stage.wish(user, Wish::Online);
    }
    let judged_before = play.judged.counts.sent;
    let is_checked = play.node.is_running()
        && play.stage.calm(recovery_max).await
        && play.judge(Scope::Whole, audit_max).await;
    play.print_broken();
    let (is_good, sent) = (play.is_good(), play.stage.look(|scene| scene.record.counts().sent));
    let is_known = (is_checked && sent > 0) || !is_good;
    let text = words::verdict(is_good, is_checked, sent, judged_before);
    play.screen.verdict(text, is_known.then_some(is_good));
    for user in User::BOTH {
        play.stage.wish(user, Wish::Offline);
    }
    play.stage.until(BYE_MAX, |scene| scene.bots.iter().all(|bot| !bot.is_live())).await;
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser, Debug)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn counts_begin_at_one() {
        for option in ["--rounds", "--plant"] {
            let why = Line::try_parse_from(["demo", option, "0"]).unwrap_err().to_string();
            assert!(why.contains(option) && why.contains("from 1 on"), "{why}");
        }
        let args = Line::try_parse_from(["demo", "--rounds", "1", "--plant", "2"]).unwrap().args;
        assert_eq!((args.rounds, args.plant), (Some(1), Some(2)));
    }
}
