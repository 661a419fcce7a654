//! Command line: the subcommands, one file each, and their exit codes.

use std::{
    panic,
    path::PathBuf,
    process::{self, ExitCode},
};

use clap::{CommandFactory as _, Parser, Subcommand};

pub mod admin;
pub mod api;
pub mod assign;
pub mod cert;
pub mod client;
pub mod demo;
pub mod drain;
pub mod help;
pub mod http;
pub mod key;
pub mod nodes;
pub mod plan;
pub mod send;
pub mod serve;
pub mod store;
pub mod tail;
pub mod token;
pub mod topics;
pub mod trace;
pub mod up;

/// A connection broker: holds the connections of clients and moves their messages in order, at least once.
#[derive(Parser, Debug)]
#[command(version, about, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate                                     serve on 127.0.0.1:7800
  tidegate demo                                see it broken, and nothing lost
  tidegate tail --user bob                     show what bob receives
  tidegate send --user alice --to bob hello    one message from alice to bob
  tidegate token alice                         a development token
  tidegate group create team alice bob         a group
  tidegate errors NOT_A_MEMBER                 what a code means, and its cure

The environment sets configuration keys as TIDEGATE__SECTION__KEY; see docs/config.md.";

#[derive(Subcommand, Debug)]
enum Command {
    /// Hold connections and move messages (the default)
    Serve(serve::Args),
    /// Show a node and two bots that talk while links, clients and the node are broken
    Demo(demo::Args),
    /// Send a message as a user
    Send(send::Args),
    /// Show what a user receives, or the events of nodes
    Tail(tail::Args),
    /// Print a development token, signed with the key of the data directory
    Token(token::Args),
    /// Create, list or revoke keys of the admin port
    Key(key::Args),
    /// Create a certificate for development, signed by an authority of its own
    Cert(cert::Args),
    /// Check, count, export or import the store of a stopped node
    Store(store::Args),
    /// Start a local cluster against running services, for evaluation
    Up(up::Args),
    /// Show the nodes of the cluster: state, connections, partitions
    Nodes(nodes::NodesArgs),
    /// Show which node owns each partition of the log
    Owners(admin::AdminArgs),
    /// Show the nodes that a user's devices are connected to
    Where(nodes::WhereArgs),
    /// List, show and change groups
    Group(api::group::GroupArgs),
    /// Show messages and changes of all nodes as they are accepted
    #[command(visible_alias = "events")]
    Event(api::event::EventArgs),
    /// Show the history of a conversation
    History(api::history::HistoryArgs),
    /// Show a user: connections, unread messages, conversations
    User(api::user::UserArgs),
    /// Close the connections of a user
    Kick(api::user::KickArgs),
    /// List, show and change the endpoints of webhooks
    Webhook(api::webhook::WebhookArgs),
    /// Ban a network, a user or a device
    Ban(nodes::BanArgs),
    /// Lift a ban
    Unban(nodes::UnbanArgs),
    /// List, add or lift bans of networks, users and devices
    Bans(nodes::BansArgs),
    /// Show message storms of groups, or how many messages a group has
    Storms(nodes::storms::StormsArgs),
    /// Show each step of a message, or of a user's messages, on all nodes
    Trace(trace::Args),
    /// Show the rules of limits of a node, what they refused, and the state of one subject
    Limits(nodes::LimitsArgs),
    /// Create missing Kafka topics and check existing ones; nothing else creates them
    Topics(topics::Args),
    /// Drain a node, show its progress, or abort the drain
    Drain(drain::Args),
    /// Print the plan of a drain: phases, pace, and the time to grant before SIGKILL
    DrainPlan(plan::PlanArgs),
    /// Check, write or show a configuration without running a node
    Config(plan::ConfigArgs),
    /// Save servers under names, for --context
    Context(key::ContextArgs),
    /// Explain a code, or list all of them
    Errors(help::ErrorsArgs),
    /// Print completions for a shell
    Completions(help::CompletionsArgs),
}

/// Option with the data directory, for commands that find a node or sign their own tokens.
#[derive(clap::Args, Clone, Debug)]
pub struct DataArg {
    /// Data directory of the node, with its token key and addresses; that of `tidegate up` means its first node that
    /// answers
    #[arg(long, value_name = "DIR", default_value = "tidegate-data", env = "TIDEGATE_DATA")]
    pub data: PathBuf,
}

/// Parses the arguments and runs the command.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage. `serve` has two more: 3 if the drain's deadline cut connections, 4 if a
/// second signal ended the drain. `up` passes on the first bad exit code of its nodes, and `demo`
/// exits with 1 also if a promise was broken.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let command = cli.command.unwrap_or(Command::Serve(serve::Args::default()));
    if !matches!(command, Command::Serve(_) | Command::Demo(_) | Command::Up(_)) {
        end_with_reader();
    }
    let result = match command {
        Command::Serve(args) => return exit_code(serve::run(&args)),
        Command::Demo(args) => return exit_code(demo::run(&args)),
        Command::Send(args) => send::run(&args),
        Command::Tail(args) => tail::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Cert(args) => cert::run(&args),
        Command::Store(args) => store::run(&args),
        Command::Up(args) => return exit_code(up::run(&args)),
        Command::Nodes(args) => nodes::nodes(&args),
        Command::Owners(args) => nodes::owners(&args),
        Command::Where(args) => nodes::where_is(&args),
        Command::Group(args) => api::group::group(&args),
        Command::Event(args) => api::event::follow(&args),
        Command::History(args) => api::history::history(&args),
        Command::User(args) => api::user::user(&args),
        Command::Kick(args) => api::user::kick(&args),
        Command::Webhook(args) => api::webhook::webhook(&args),
        Command::Ban(args) => nodes::ban(&args),
        Command::Unban(args) => nodes::unban(&args),
        Command::Bans(args) => nodes::bans(&args),
        Command::Storms(args) => nodes::storms::storms(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Limits(args) => nodes::limits(&args),
        Command::Topics(args) => topics::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::DrainPlan(args) => plan::plan(&args),
        Command::Config(args) => plan::config(&args),
        Command::Context(args) => key::contexts(&args),
        Command::Errors(args) => help::errors(&args),
        Command::Completions(args) => {
            help::completions(&args, Cli::command());
            Ok(())
        }
    };
    exit_code(result.map(|()| ExitCode::SUCCESS))
}

/// Exit code of a program whose output nobody reads any more: that of a death by SIGPIPE.
const NO_READER_CODE: i32 = 141;

/// Ends the process without a message once nobody reads its output any more, as in `tidegate nodes | head -1`.
pub fn end_with_reader() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(|text| text.starts_with("failed printing to stdout")) {
            process::exit(NO_READER_CODE);
        }
        report(panic);
    }));
}

fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            ExitCode::FAILURE
        }
    }
}
