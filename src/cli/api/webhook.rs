//! `tidegate webhook`: lists, shows and changes the endpoints of webhooks.

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use crate::{
    cli::admin::{AdminArgs, accepted, array, cell, escaped, printable, table},
    clock::rfc3339,
};

/// Arguments of `tidegate webhook`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct WebhookArgs {
    #[command(subcommand)]
    command: WebhookCommand,
}

const EXAMPLES: &str = "\
Examples:
  tidegate webhook set crm https://crm.internal/tg --type 'tidegate.message.*'
  tidegate webhook test crm
  tidegate webhook show crm
  tidegate webhook replay crm --from oldest

With keys on the admin port a change needs the scope operate, one with --content also the scope content.";

#[derive(clap::Subcommand, Debug)]
enum WebhookCommand {
    /// List endpoints and their state on the node
    List(ListArgs),
    /// Show an endpoint and what it has taken
    Show(OneArgs),
    /// Create an endpoint, which prints its secret, or replace its definition
    Set(SetArgs),
    /// Remove an endpoint
    Remove(RemoveArgs),
    /// Send an event that says nothing, and print the answer
    Test(OneArgs),
    /// Stop sending
    Pause(OneArgs),
    /// Go on sending
    Resume(OneArgs),
    /// Send events again
    Replay(ReplayArgs),
    /// Add a secret and print it; the former one signs for another 24 hours
    Secret(OneArgs),
    /// List the events that were set aside
    Aside(OneArgs),
    /// Send an event that was set aside
    Resend(EventArgs),
    /// Forget an event that was set aside
    Drop(EventArgs),
}

#[derive(clap::Args, Debug)]
struct ListArgs {
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args, Debug)]
struct OneArgs {
    /// Id of the endpoint
    webhook: String,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args, Debug)]
struct SetArgs {
    /// Id of the endpoint
    webhook: String,
    /// URL that gets the events
    url: String,
    /// Type of events, or a beginning with * at its end; may be repeated
    #[arg(long = "type", value_name = "TYPE", required = true)]
    types: Vec<String>,
    /// Conversation, or a beginning with * at its end; may be repeated; default: all
    #[arg(long = "conversation", value_name = "KEY")]
    conversations: Vec<String>,
    /// User as sender, recipient or subject; may be repeated; default: all
    #[arg(long = "user", value_name = "USER")]
    users: Vec<String>,
    /// Send what people wrote, too
    #[arg(long)]
    content: bool,
    /// Most events of a request, 1 to 100
    #[arg(long, value_name = "COUNT")]
    batch: Option<u32>,
    /// Most requests of a node at a time, 1 to 32
    #[arg(long, value_name = "COUNT")]
    parallel: Option<u32>,
    /// Header of the requests; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// Where a new endpoint starts: now, oldest, or ms since 1970
    #[arg(long, default_value = "now")]
    from: String,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args, Debug)]
struct RemoveArgs {
    /// Id of the endpoint
    webhook: String,
    /// Confirm that the endpoint and its progress are removed
    #[arg(long, required = true)]
    yes: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args, Debug)]
struct ReplayArgs {
    /// Id of the endpoint
    webhook: String,
    /// From where: oldest, or ms since 1970
    #[arg(long)]
    from: String,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args, Debug)]
struct EventArgs {
    /// Id of the endpoint
    webhook: String,
    /// Id of the event, as in g:team/18
    event: String,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Splits `NAME=VALUE`.
fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Lists, shows or changes endpoints of webhooks.
///
/// # Errors
/// The node does not answer, or refuses the request.
pub fn webhook(args: &WebhookArgs) -> anyhow::Result<()> {
    match &args.command {
        WebhookCommand::List(args) => list(&args.admin),
        WebhookCommand::Show(args) => show(&args.admin, "GET", &path(&args.webhook), ""),
        WebhookCommand::Set(args) => set(args),
        WebhookCommand::Remove(args) => {
            let reply = accepted(args.admin.request("DELETE", &path(&args.webhook))?)?;
            say(&args.admin, &reply, &format!("{} removed", cell(&reply["id"])));
            Ok(())
        }
        WebhookCommand::Test(args) => outcome(&args.admin, &format!("{}/test", path(&args.webhook))),
        WebhookCommand::Pause(args) => {
            show(&args.admin, "POST", &format!("{}/pause", path(&args.webhook)), "{}")
        }
        WebhookCommand::Resume(args) => {
            show(&args.admin, "POST", &format!("{}/resume", path(&args.webhook)), "{}")
        }
        WebhookCommand::Replay(args) => {
            let body = json!({"from": start(&args.from)?}).to_string();
            show(&args.admin, "POST", &format!("{}/replay", path(&args.webhook)), &body)
        }
        WebhookCommand::Secret(args) => {
            let reply = accepted(args.admin.request_with(
                "POST",
                &format!("{}/secrets", path(&args.webhook)),
                "{}",
            )?)?;
            say(&args.admin, &reply, &cell(&reply["secret"]));
            Ok(())
        }
        WebhookCommand::Aside(args) => aside(args),
        WebhookCommand::Resend(args) => outcome(&args.admin, &format!("{}/resend", args.path()?)),
        WebhookCommand::Drop(args) => {
            let reply = accepted(args.admin.request("DELETE", &args.path()?)?)?;
            say(&args.admin, &reply, &format!("{} dropped", cell(&reply["event"])));
            Ok(())
        }
    }
}

fn path(webhook: &str) -> String {
    format!("/v1/webhooks/{}", escaped(webhook))
}

/// Returns the start that a text names.
fn start(text: &str) -> anyhow::Result<Value> {
    match text {
        "now" | "oldest" => Ok(json!(text)),
        time => {
            let time: u64 = time.parse().context("--from: now, oldest, or a time in ms since 1970")?;
            Ok(json!({ "time": time }))
        }
    }
}

/// Prints a text, or the reply as JSON if that is asked for.
fn say(admin: &AdminArgs, reply: &Value, text: &str) {
    if !admin.printed_json(reply) {
        println!("{text}");
    }
}

fn set(args: &SetArgs) -> anyhow::Result<()> {
    let mut body =
        json!({"url": args.url, "types": args.types, "content": args.content, "from": start(&args.from)?});
    if !args.conversations.is_empty() {
        body["conversations"] = json!(args.conversations);
    }
    if !args.users.is_empty() {
        body["users"] = json!(args.users);
    }
    if let Some(max) = args.batch {
        body["batch"] = json!({ "max": max });
    }
    if let Some(parallel) = args.parallel {
        body["parallel"] = json!(parallel);
    }
    if !args.headers.is_empty() {
        let headers = args.headers.iter().map(|(name, value)| (name.clone(), json!(value)));
        body["headers"] = Value::Object(headers.collect::<Map<String, Value>>());
    }
    show(&args.admin, "PUT", &path(&args.webhook), &body.to_string())
}

fn show(admin: &AdminArgs, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
    let reply = accepted(admin.request_with(method, path, body)?)?;
    if !admin.printed_json(&reply) {
        print!("{}", shown(&reply));
    }
    Ok(())
}

fn shown(it: &Value) -> String {
    let mut text = format!("{}: {}, {}\n", cell(&it["id"]), cell(&it["state"]), printable(&cell(&it["url"])));
    let names = |key: &str| array(it, key).iter().map(cell).collect::<Vec<_>>().join(", ");
    text.push_str(&format!("types    {}\n", names("types")));
    for (name, key) in [("only", "conversations"), ("users", "users")] {
        if !array(it, key).is_empty() {
            text.push_str(&format!("{name:<9}{}\n", names(key)));
        }
    }
    text.push_str(&format!(
        "behind   {} events, {} ms\nparked   {} conversations\naside    {} events\n",
        cell(&it["behind"]),
        cell(&it["lagMs"]),
        cell(&it["parkedCount"]),
        cell(&it["asideCount"]),
    ));
    if let Some(error) = it["error"].as_str() {
        text.push_str(&format!("failure  {}, at {}\n", printable(error), cell(&it["node"])));
    }
    for secret in array(it, "secrets") {
        let ends = secret["endsMs"].as_u64().map(|at| format!(", signs until {}", rfc3339(at)));
        let secret = match secret["secret"].as_str() {
            Some(shown) => format!("{} {shown}   (shown only now)", cell(&secret["id"])),
            None => format!("{}{}", cell(&secret["id"]), ends.unwrap_or_default()),
        };
        text.push_str(&format!("secret   {secret}\n"));
    }
    text
}

fn list(admin: &AdminArgs) -> anyhow::Result<()> {
    let Some(reply) = admin.get("/v1/webhooks")? else { return Ok(()) };
    let all = array(&reply, "webhooks");
    if all.is_empty() {
        println!("no webhooks; create one: tidegate webhook set ID URL --type 'tidegate.message.*'");
        return Ok(());
    }
    let mut rows = vec![["WEBHOOK", "STATE", "URL", "FAILURE"].map(String::from)];
    rows.extend(all.iter().map(|it| {
        let error = it["error"].as_str().map(printable).unwrap_or_default();
        [cell(&it["id"]), cell(&it["state"]), printable(&cell(&it["url"])), error]
    }));
    print!("{}", table(&rows));
    Ok(())
}

fn outcome(admin: &AdminArgs, path: &str) -> anyhow::Result<()> {
    let reply = accepted(admin.request_with("POST", path, "{}")?)?;
    if admin.printed_json(&reply) {
        return Ok(());
    }
    let status = reply["status"].as_u64().map(|status| format!(" with status {status}")).unwrap_or_default();
    if reply["taken"] == true {
        println!("taken{status}");
        return Ok(());
    }
    bail!("not taken{status}: {}", printable(&cell(&reply["error"])))
}

fn aside(args: &OneArgs) -> anyhow::Result<()> {
    let Some(reply) = args.admin.get(&format!("{}/aside?limit=1000", path(&args.webhook)))? else {
        return Ok(());
    };
    let mut rows = vec![["EVENT", "TRIES"].map(String::from)];
    let events = array(&reply, "events");
    rows.extend(
        events
            .iter()
            .map(|it| [format!("{}/{}", cell(&it["conversation"]), cell(&it["seq"])), cell(&it["tries"])]),
    );
    print!("{}", table(&rows));
    if !reply["next"].is_null() {
        println!("... of {}", cell(&reply["count"]));
    }
    Ok(())
}

impl EventArgs {
    fn path(&self) -> anyhow::Result<String> {
        let (conversation, seq) =
            self.event.rsplit_once('/').context("name the event as CONVERSATION/SEQ, as in g:team/18")?;
        let seq: u64 = seq.parse().context("the seq of the event is no number")?;
        Ok(format!("{}/aside/{}/{seq}", path(&self.webhook), escaped(conversation)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_shown_with_its_progress_and_a_new_secret() {
        let it = json!({"id": "crm", "state": "failing", "url": "https://crm.internal/tg", "types": ["tidegate.message.*"],
            "conversations": ["g:*"], "behind": 3, "lagMs": 1200, "parkedCount": 1, "asideCount": 0, "node": "n1",
            "error": "status 500", "secrets": [{"id": "s1", "endsMs": 1_795_973_344_000_u64}, {"id": "s2", "secret": "whsec_x"}]});
        assert_eq!(
            shown(&it),
            "crm: failing, https://crm.internal/tg\n\
             types    tidegate.message.*\n\
             only     g:*\n\
             behind   3 events, 1200 ms\n\
             parked   1 conversations\n\
             aside    0 events\n\
             failure  status 500, at n1\n\
             secret   s1, signs until 2026-11-29T17:29:04.000Z\n\
             secret   s2 whsec_x   (shown only now)\n"
        );
    }

    #[test]
    fn start_is_a_word_or_a_time() {
        assert_eq!(start("oldest").unwrap(), json!("oldest"));
        assert_eq!(start("12").unwrap(), json!({"time": 12}));
        assert!(start("yesterday").is_err());
    }
}
