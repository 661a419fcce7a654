//! `tidegate group`: lists, shows and changes groups.

use serde_json::{Map, Value, json};

use crate::cli::admin::{AdminArgs, accepted, array, cell, escaped, printable, table};

/// Largest page of a list.
const PAGE: u32 = 200;

/// Arguments of `tidegate group`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct GroupArgs {
    #[command(subcommand)]
    command: GroupCommand,
}

const EXAMPLES: &str = "\
Examples:
  tidegate group create team alice bob --owner alice
  tidegate group add team carol
  tidegate group set team history=all post=admins
  tidegate group show team

A change repeated under its --request-id is no error, nor is adding a member again. With keys on the
admin port a change needs the scope groups, and a list the scope read.";

#[derive(clap::Subcommand, Debug)]
enum GroupCommand {
    /// List groups, sorted by id
    List(ListArgs),
    /// Show a group, its settings and its first 1,000 members
    Show(OneArgs),
    /// Create a group
    Create(CreateArgs),
    /// Add members
    Add(MembersArgs),
    /// Remove members
    Remove(MembersArgs),
    /// Mute members: they see everything and can't post
    Mute(MembersArgs),
    /// Let muted members post again
    Unmute(MembersArgs),
    /// Give members a role: member, admin or owner
    Role(RoleArgs),
    /// Change settings; an empty value restores the default
    Set(SettingsArgs),
    /// Delete a group; its id can't be used again
    Delete(DeleteArgs),
}

#[derive(clap::Args, Debug)]
struct ListArgs {
    /// Beginning of the ids
    #[arg(long)]
    prefix: Option<String>,
    /// Most groups
    #[arg(short = 'n', long, default_value_t = 50)]
    limit: u32,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args, Debug)]
struct OneArgs {
    /// Id of the group, as in `team` for g:team
    group: String,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Options of each change.
#[derive(clap::Args, Debug)]
struct ChangeArgs {
    /// User who makes the change, with that user's rights; default: the operator, who may do everything
    #[arg(long, value_name = "USER")]
    by: Option<String>,
    /// Id of the request, under which it can be repeated
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args, Debug)]
struct CreateArgs {
    /// Id of the group, as in `team` for g:team
    group: String,
    /// Members
    users: Vec<String>,
    /// User who joins with the role owner
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Setting of the group, such as history=all; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,
    /// Id of the request, under which it can be repeated
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args, Debug)]
struct MembersArgs {
    /// Id of the group, as in `team` for g:team
    group: String,
    /// Users, at most 1,000
    #[arg(required = true)]
    users: Vec<String>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(clap::Args, Debug)]
struct RoleArgs {
    /// Id of the group, as in `team` for g:team
    group: String,
    /// Role
    #[arg(value_parser = ["member", "admin", "owner"])]
    role: String,
    /// Users, at most 1,000
    #[arg(required = true)]
    users: Vec<String>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(clap::Args, Debug)]
struct SettingsArgs {
    /// Id of the group, as in `team` for g:team
    group: String,
    /// Settings, such as history=all
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(clap::Args, Debug)]
struct DeleteArgs {
    /// Id of the group, as in `team` for g:team
    group: String,
    /// Confirm that the group ends and can't be restored
    #[arg(long, required = true)]
    yes: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Lists, shows or changes groups.
///
/// # Errors
/// The node does not answer, or refuses the request.
pub fn group(args: &GroupArgs) -> anyhow::Result<()> {
    match &args.command {
        GroupCommand::List(args) => list(args),
        GroupCommand::Show(args) => show(args),
        GroupCommand::Create(args) => {
            let body = json!({"id": args.group, "members": args.users, "owner": args.owner,
                "settings": settings(&args.settings), "requestId": args.request_id});
            post(&args.admin, "/v1/groups", body)
        }
        GroupCommand::Add(args) => args.post("add"),
        GroupCommand::Remove(args) => args.post("remove"),
        GroupCommand::Mute(args) => args.post("mute"),
        GroupCommand::Unmute(args) => args.post("unmute"),
        GroupCommand::Role(args) => {
            args.change.post(&args.group, "roles", json!({"users": args.users, "role": args.role}))
        }
        GroupCommand::Set(args) => {
            args.change.post(&args.group, "settings", json!({"settings": settings(&args.settings)}))
        }
        GroupCommand::Delete(args) => delete(args),
    }
}

impl MembersArgs {
    fn post(&self, list: &str) -> anyhow::Result<()> {
        self.change.post(&self.group, "members", json!({ list: self.users }))
    }
}

impl ChangeArgs {
    fn post(&self, group: &str, what: &str, mut body: Value) -> anyhow::Result<()> {
        body["by"] = json!(self.by);
        body["requestId"] = json!(self.request_id);
        post(&self.admin, &format!("/v1/groups/{}/{what}", escaped(group)), body)
    }
}

fn post(admin: &AdminArgs, path: &str, mut body: Value) -> anyhow::Result<()> {
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    print_change(admin, &accepted(admin.request_with("POST", path, &body.to_string())?)?);
    Ok(())
}

fn delete(args: &DeleteArgs) -> anyhow::Result<()> {
    let mut path = format!("/v1/groups/{}?", escaped(&args.group));
    for (name, value) in [("by", &args.change.by), ("requestId", &args.change.request_id)] {
        if let Some(value) = value {
            path.push_str(&format!("{name}={}&", escaped(value)));
        }
    }
    let path = path.trim_end_matches(['?', '&']);
    print_change(&args.change.admin, &accepted(args.change.admin.request("DELETE", path)?)?);
    Ok(())
}

fn print_change(admin: &AdminArgs, reply: &Value) {
    if admin.printed_json(reply) {
        return;
    }
    let was = if reply["duplicate"] == true { ", by an earlier request" } else { "" };
    println!("{} changed at seq {}{was}", cell(&reply["conversation"]), cell(&reply["seq"]));
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let mut rows = vec![["GROUP", "MEMBERS", "MESSAGES", "LAST SEQ", "STATE"].map(String::from)];
    let mut cursor: Option<String> = None;
    let mut left = args.limit;
    while left > 0 {
        let mut path = format!("/v1/conversations?kind=group&limit={}", left.min(PAGE));
        if let Some(prefix) = &args.prefix {
            path.push_str(&format!("&prefix={}", escaped(prefix)));
        }
        if let Some(cursor) = &cursor {
            path.push_str(&format!("&cursor={}", escaped(cursor)));
        }
        // With --json each page is one line.
        let page = accepted(args.admin.request("GET", &path)?)?;
        args.admin.printed_json(&page);
        let found = array(&page, "conversations");
        rows.extend(found.iter().map(row));
        left = left.saturating_sub(u32::try_from(found.len()).unwrap_or(u32::MAX));
        cursor = page["next"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    if args.admin.is_json() {
        return Ok(());
    }
    print!("{}", table(&rows));
    if cursor.is_some() {
        eprintln!("... and more: use --limit or --prefix");
    }
    Ok(())
}

fn row(group: &Value) -> [String; 5] {
    let state = if group["ended"] == true { "deleted" } else { "" };
    let id = cell(&group["conversation"]);
    let id = id.strip_prefix("g:").unwrap_or(&id).to_owned();
    [id, cell(&group["members"]), cell(&group["messages"]), cell(&group["maxSeq"]), state.to_owned()]
}

fn show(args: &OneArgs) -> anyhow::Result<()> {
    let Some(group) = args.admin.get(&format!("/v1/groups/{}", escaped(&args.group)))? else { return Ok(()) };
    print!("{}", shown(&group));
    Ok(())
}

fn shown(group: &Value) -> String {
    let settings = group["settings"].as_object();
    let settings: Vec<String> =
        settings.into_iter().flatten().map(|(key, value)| format!("{key}={}", cell(value))).collect();
    let settings = if settings.is_empty() { "default settings".to_owned() } else { settings.join(" ") };
    let members = array(group, "members");
    let mut rows = vec![["USER", "ROLE", "MUTED"].map(String::from)];
    for user in members {
        let role = group["roles"][cell(user)].as_str().unwrap_or("member").to_owned();
        let muted = if array(group, "muted").contains(user) { "muted" } else { "" };
        rows.push([cell(user), role, muted.to_owned()]);
    }
    let more = group["count"].as_u64().unwrap_or(0).saturating_sub(members.len() as u64);
    let more = if more > 0 { format!("... and {more} more\n") } else { String::new() };
    let name = group["name"].as_str().map(|name| format!(" {}", printable(name))).unwrap_or_default();
    let meta = group["meta"].as_object().into_iter().flatten();
    let meta: String =
        meta.map(|(key, value)| printable(&format!("{key}: {}", cell(value))) + "\n").collect();
    let (id, count) = (cell(&group["conversation"]), cell(&group["count"]));
    format!("{id}{name}, {count} members, {settings}\n{meta}{}{more}", table(&rows))
}

/// Parses `KEY=VALUE`.
fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn settings(pairs: &[(String, String)]) -> Option<Map<String, Value>> {
    let settings = pairs.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    (!pairs.is_empty()).then_some(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_shown_with_roles_mutes_and_the_number_of_further_members() {
        let group = json!({"conversation": "g:team", "count": 5, "members": ["alice", "bob"], "muted": ["bob"],
            "roles": {"alice": "owner"}, "settings": {"history": "all"}});
        assert_eq!(
            shown(&group),
            "g:team, 5 members, history=all\nUSER   ROLE    MUTED\nalice  owner   -\nbob    member  muted\n... and 3 more\n"
        );
        let named =
            json!({"conversation": "g:a", "count": 0, "name": "Tea\u{7}", "meta": {"color": "green"}});
        assert_eq!(
            shown(&named),
            "g:a Tea\\u{7}, 0 members, default settings\ncolor: green\nUSER  ROLE  MUTED\n"
        );
        let ended = json!({"conversation": "g:old", "ended": true, "maxSeq": 9, "members": 0, "messages": 4});
        assert_eq!(row(&ended), ["old", "0", "4", "9", "deleted"]);
        assert!(pair("history").is_err() && pair("post=").is_ok_and(|it| it.1.is_empty()));
    }
}
