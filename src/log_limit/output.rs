//! Output of the log on stderr: its form and its filter, which a reload replaces.

use std::{
    io, panic,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use tracing_subscriber::{EnvFilter, fmt::format::DefaultFields, util::SubscriberInitExt as _};

use super::{
    LogLimit,
    json::{self, JsonLines},
    lines::LogLines,
};
use crate::config::{LogConfig, LogFormat};

/// Environment variable with a filter that wins over `log.filter`.
const FILTER_VARIABLE: &str = "TIDEGATE_LOG";

type FilterSetter = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// Replaces the filter of the log; unset in processes that log nothing.
static SET_FILTER: OnceLock<FilterSetter> = OnceLock::new();

/// Whether lines are JSON objects.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Starts the log of the process.
///
/// # Errors
/// The filter is invalid, or the process logs already.
pub(crate) fn start(config: &LogConfig, has_colours: bool) -> Result<(), String> {
    let filter = from_environment().map_or_else(|| parse(&config.filter), Ok)?;
    let builder = tracing_subscriber::fmt().with_ansi(has_colours).with_writer(io::stderr);
    let builder = builder.fmt_fields(DefaultFields::new());
    // Two branches, because the format is part of the type.
    let started = match config.format() {
        LogFormat::Text => {
            let log = builder.event_format(LogLines::new(has_colours)).with_env_filter(filter);
            let log = log.with_filter_reloading();
            keep_setter(log.reload_handle());
            log.finish().try_init()
        }
        LogFormat::Json => {
            IS_JSON.store(true, Ordering::Relaxed);
            let log = builder.event_format(JsonLines::new()).with_env_filter(filter).with_filter_reloading();
            keep_setter(log.reload_handle());
            log.finish().try_init()
        }
    };
    started.map_err(|error| error.to_string())
}

fn keep_setter<S: 'static>(handle: tracing_subscriber::reload::Handle<EnvFilter, S>) {
    // A second log in a process is refused.
    SET_FILTER
        .set(Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string())))
        .unwrap_or_default();
}

fn from_environment() -> Option<EnvFilter> {
    EnvFilter::try_from_env(FILTER_VARIABLE).ok()
}

fn parse(filter: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(filter).map_err(|error| error.to_string())
}

/// Reads a filter; `None` if the environment has one, which wins.
///
/// # Errors
/// The filter is invalid.
pub(crate) fn filter(filter: &str) -> Result<Option<EnvFilter>, String> {
    let filter = parse(filter)?;
    Ok(from_environment().is_none().then_some(filter))
}

/// Replaces the filter of the log, if the process logs.
pub(crate) fn set_filter(filter: EnvFilter) {
    if let Some(Err(error)) = SET_FILTER.get().map(|set| set(filter)) {
        tracing::error!(error, "failed to replace the filter of the log");
    }
}

/// Names the node in lines that are JSON objects.
pub(crate) fn set_node(node: &str) {
    json::set_node(node);
}

/// Writes a line for the operator, also if the filter drops others.
pub(crate) fn announce(text: &str) {
    match IS_JSON.load(Ordering::Relaxed) {
        true => eprintln!("{}", json::line("INFO", "tidegate", text)),
        false => eprintln!("{text}"),
    }
}

/// Limits the panics that this process prints: those within a connection or a query are contained, so that a client
/// could repeat one. [`crate::supervised`] reports the others in any case.
pub(crate) fn limit_panics() {
    static LIMIT: LogLimit = LogLimit::new();
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let Some(suppressed) = LIMIT.pass() else { return };
        if suppressed > 0 {
            announce(&format!("{suppressed} earlier panics were not printed"));
        }
        match IS_JSON.load(Ordering::Relaxed) {
            true => eprintln!("{}", json::line("ERROR", "tidegate::panic", &panic.to_string())),
            false => print(panic),
        }
    }));
}
