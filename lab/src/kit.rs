//! `tidegate-lab kit`: whether a client library keeps the protocol. A scripted node plays cases against an adapter of the
//! library, and judges its frames, their times, and the events that it reports (docs/clients/README.md).

mod adapter;
mod answers;
mod board;
mod cases;
mod connection;
mod invariants;
mod pattern;
mod player;
pub mod reference;
mod report;
mod step;
mod wire;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::{StreamExt as _, stream};

use adapter::{Adapter, Description};
use player::Player;
use report::Outcome;
use step::Case;

pub use step::ClientLevel;
pub use wire::KitTransport;

/// Time of a case, whatever its steps wait for.
const CASE_TIMEOUT: Duration = Duration::from_secs(20);

/// Arguments of the command.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Command that starts the adapter; a shell reads it
    #[arg(long, value_name = "COMMAND", required_unless_present = "list")]
    pub adapter: Option<String>,
    /// Highest level to judge; by default the highest that the adapter claims
    #[arg(long, value_enum)]
    pub level: Option<ClientLevel>,
    /// Only cases whose name contains this text; may be repeated
    #[arg(long = "case", value_name = "NAME")]
    pub cases: Vec<String>,
    /// Transport of the cases that name none; by default the first of the adapter
    #[arg(long, value_enum)]
    pub transport: Option<KitTransport>,
    /// Time in ms by which a client may be later than a case allows, on a busy machine
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub slack: u64,
    /// Cases at a time
    #[arg(long, default_value_t = 16)]
    pub jobs: usize,
    /// Folder with other cases than the built-in ones
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Print the cases and end
    #[arg(long)]
    pub list: bool,
}

/// Returns the page that lists the cases, for `docs/clients/cases.md`.
pub fn cases_page() -> Result<String> {
    Ok(report::page(&cases::all(None)?))
}

/// Plays the cases. It fails when one of them does.
pub fn run(args: &Args) -> Result<()> {
    let is_chosen = |case: &Case| {
        args.level.is_none_or(|level| case.level <= level)
            && (args.cases.is_empty() || args.cases.iter().any(|part| case.name.contains(part.as_str())))
    };
    let mut cases: Vec<Case> = cases::all(args.folder.as_deref())?.into_iter().filter(is_chosen).collect();
    cases.iter_mut().for_each(|case| case.stretch(Duration::from_millis(args.slack)));
    ensure!(!cases.is_empty(), "no case has such a name");
    if args.list {
        for case in &cases {
            println!("{:?}  {:<16}{}: {}", case.level, case.family, case.name, case.about);
        }
        println!("{} cases", cases.len());
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(Box::pin(play(args, &cases)))
}

async fn play(args: &Args, cases: &[Case]) -> Result<()> {
    let command = args.adapter.as_deref().context("no adapter")?;
    let (adapter, description) = Adapter::start(command).await?;
    let own = description.transports.iter().find_map(|name| KitTransport::named(name));
    let transport = args.transport.or(own).context("the adapter names no transport")?;
    let began = Instant::now();
    let results = stream::iter(cases.iter().enumerate().map(|(number, case)| {
        let (adapter, description) = (&adapter, &description);
        async move {
            let transport = case.transport.unwrap_or(transport);
            let outcome = match lack(case, transport, args, description) {
                Some(why) => Outcome::Skipped(why),
                None => Box::pin(judge(number, case, transport, args, adapter)).await,
            };
            (number, case, outcome)
        }
    }));
    let mut results: Vec<(usize, &Case, Outcome)> =
        results.buffer_unordered(args.jobs.max(1)).collect().await;
    results.sort_by_key(|(number, _, _)| *number);
    let failed = report::print(&results);
    adapter.finish().await?;
    println!(
        "{} {}, {} cases in {:.1} s over {}",
        description.name,
        description.version,
        results.len(),
        began.elapsed().as_secs_f64(),
        transport.name()
    );
    if failed > 0 {
        bail!("{failed} cases failed");
    }
    Ok(())
}

/// Returns what the adapter lacks for a case.
fn lack(case: &Case, transport: KitTransport, args: &Args, description: &Description) -> Option<String> {
    let level = format!("{:?}", case.level);
    if args.level.is_none() && !description.levels.contains(&level) {
        return Some(format!("the adapter does not claim {level}"));
    }
    if !description.transports.iter().any(|name| name == transport.name()) {
        return Some(format!("the adapter has no {}", transport.name()));
    }
    let needed = case.needs.as_ref()?;
    (!description.can.contains(needed)).then(|| format!("the adapter has no `{needed}`"))
}

async fn judge(
    number: usize,
    case: &Case,
    transport: KitTransport,
    args: &Args,
    adapter: &Adapter,
) -> Outcome {
    let began = Instant::now();
    let slack = Duration::from_millis(args.slack);
    let mut player = match Player::open(number, case, transport, slack, adapter).await {
        Ok(player) => player,
        Err(reason) => return Outcome::Failed(reason, String::new()),
    };
    let result = tokio::time::timeout(CASE_TIMEOUT, Box::pin(player.play())).await;
    let result = result.unwrap_or_else(|_| Err(format!("not over after {} s", CASE_TIMEOUT.as_secs())));
    let outcome = match result {
        Ok(()) => Outcome::Passed,
        Err(reason) => {
            let history = player.board.look(|log| report::history(log, began));
            Outcome::Failed(reason, history)
        }
    };
    player.finish();
    outcome
}
