//! The examples of the description, which are one session with a fresh node: a test plays them and compares the answers
//! with the recorded ones, or records them with `TIDEGATE_UPDATE_DOCS=1`.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize as _;
use serde_json::{Value, json, ser};
use tidegate::api::routes;
use tidegate_protocol::codec::Wire;

#[allow(dead_code, reason = "the pages use the rest of it")]
#[path = "../../docs/generated.rs"]
mod generated;
#[path = "masks.rs"]
mod masks;
#[path = "schema.rs"]
mod schema;

use self::masks::Masks;
use crate::{
    support::{Client, Process, WebhookReceiver, ask, eventually, http, send},
    webhooks::{ASIDE_SOON, set_aside, subscribe},
};

const FILE: &str = "src/api/routes/openapi.json";

/// Method and path that name a route.
struct RouteName<'a> {
    method: &'a str,
    path: &'a str,
}

impl<'a> RouteName<'a> {
    /// Returns the parts of a name such as `GET /livez`; `None` for a step of a client.
    fn parse(name: &'a str) -> Option<Self> {
        let (method, path) = name.split_once(' ')?;
        path.starts_with('/').then_some(Self { method, path })
    }
}

fn root() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the folder of the crate").into()
}

fn recorded(root: &Path) -> (String, Value) {
    let text = fs::read_to_string(root.join(FILE)).unwrap_or_else(|error| panic!("{FILE}: {error}"));
    let parts = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{FILE}: {error}"));
    (text, parts)
}

fn steps(parts: &Value) -> Vec<&str> {
    let steps = parts["session"].as_array().expect("the file has a session");
    steps.iter().map(|step| step.as_str().expect("a step is a text")).collect()
}

/// Running session.
struct ExampleSession {
    node: Process,
    clients: BTreeMap<String, Client>,
    masks: Masks,
}

impl ExampleSession {
    fn start() -> Self {
        // As in production: the drain of the session is aborted before clients notice it.
        let node = Process::start(&["drain.lb_delay_ms=5000", ASIDE_SOON]);
        // The list of nodes shows what a node owned at the last renewal of its lease, of which another comes within 3 s.
        eventually("the node lists its partition", || {
            node.http("GET", "/v1/nodes", "").contains(r#""owns":[0]"#).then_some(())
        });
        let facts: Value = serde_json::from_str(&node.http("GET", "/v1/console", "")).expect("JSON");
        let boot = facts["boot"].as_str().expect("a boot").to_owned();
        let masks = Masks(vec![
            (boot, "5f1c"),
            (node.address().to_string(), "127.0.0.1:7800"),
            (node.admin().to_string(), "127.0.0.1:7801"),
        ]);
        Self { node, clients: BTreeMap::new(), masks }
    }

    /// Does a step of a client: `login USER DEVICE`, `join USER ROOM`, `send USER DEVICE TO ID`, or `save USER DEVICE ID
    /// NEXT`, which sends a chained message and leaves. `aside WEBHOOK USER USER` creates a webhook whose receiver fails at the
    /// first message to each of these users, until they are set aside.
    fn client_step(&mut self, step: &str) {
        let words: Vec<&str> = step.split(' ').collect();
        match words[..] {
            ["login", user, device] => {
                let client = self.node.login(Wire::WsText, user, device);
                self.clients.insert(user.to_owned(), client);
            }
            ["join", user, room] => {
                let client = self.clients.get_mut(user).expect("the user is connected");
                client.expect_done(ask::join(room));
            }
            ["send", user, device, to, id] => {
                let mut client = self.node.login(Wire::WsText, user, device);
                client.text(to, id, "on my way");
                self.clients.insert(user.to_owned(), client);
            }
            ["aside", webhook, ref users @ ..] => {
                let receiver = WebhookReceiver::start();
                subscribe(&self.node, webhook, &receiver, &json!({}));
                set_aside(&self.node, webhook, &receiver, users);
            }
            ["save", user, device, id, next] => {
                let mut client = self.node.login_chained(Wire::WsText, user, device, id);
                let mut message = send("bob", id, "chained");
                message.next_id = next.to_owned();
                client.send(message);
                drop(client);
                let path = format!("/v1/users/{user}/devices/{device}");
                eventually("the chain is saved", || {
                    let device: Value = serde_json::from_str(&self.node.http("GET", &path, "")).ok()?;
                    (device["online"] == false && device["chain"] == true).then_some(())
                });
            }
            _ => panic!("{FILE}: a session has no step `{step}`"),
        }
    }

    /// Sends the example of a route; returns the status and the body of the answer.
    fn ask(&self, route: &RouteName<'_>, example: &Value, more: &str) -> (u16, String) {
        let mut path = route.path.to_owned();
        for (name, value) in example["path"].as_object().into_iter().flatten() {
            path = path.replace(&format!("{{{name}}}"), &encoded(value));
        }
        // Ids of connections differ between runs; the only client then is that of bob.
        if route.path == "/v1/connections/{id}" {
            let listed: Value =
                serde_json::from_str(&self.node.http("GET", "/v1/users/bob/connections", "")).expect("JSON");
            path = format!("/v1/connections/{}", listed["connections"][0]["id"].as_str().expect("an id"));
        }
        let query = example["query"].as_object().into_iter().flatten();
        let mut query: Vec<String> =
            query.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        query.extend((!more.is_empty()).then(|| more.to_owned()));
        let mut head = format!("{} {path}", route.method);
        if !query.is_empty() {
            head += &format!("?{}", query.join("&"));
        }
        head += " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        for (name, value) in example["headers"].as_object().into_iter().flatten() {
            head += &format!("{name}: {}\r\n", value.as_str().expect("a field is a text"));
        }
        let body = example.get("body").map(Value::to_string).unwrap_or_default();
        let reply = http::exchange(self.node.admin(), &head, &body);
        (reply.status, String::from_utf8(reply.body).expect("text"))
    }
}

/// Returns a value as it stands in a path or a query.
fn encoded(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.replace('%', "%25").replace('/', "%2F").replace(' ', "%20").replace('&', "%26")
}

/// Returns whether `whole` has all that `part` has.
fn has(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, part)| whole.get(name).is_some_and(|whole| has(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            part.is_empty() && whole.is_empty()
                || !part.is_empty() && part.iter().all(|part| whole.iter().any(|item| has(item, part)))
        }
        (whole, part) => whole == part,
    }
}

/// Returns the answer to record for a route, given the recorded one.
fn judge(masks: &Masks, name: &str, recorded: &Value, status: u16, body: &str) -> Result<Value, String> {
    if let Some(Value::Array(lines)) = recorded.get("excerpt") {
        let lines: Vec<&str> = lines.iter().filter_map(Value::as_str).collect();
        let missing = lines.iter().find(|line| !body.lines().any(|it| it == **line));
        return missing.map_or(Ok(recorded.clone()), |line| Err(format!("no line `{line}`")));
    }
    let mut real: Value = serde_json::from_str(body).map_err(|error| format!("{error}: {body}"))?;
    masks.apply(name, &mut real);
    let Some(excerpt) = recorded.get("excerpt") else { return Ok(json!({"status": status, "body": real})) };
    let mut excerpt = excerpt.clone();
    masks.apply(name, &mut excerpt);
    if has(&real, &excerpt) {
        Ok(json!({"status": status, "excerpt": excerpt}))
    } else {
        Err(format!("the excerpt is not part of {real}"))
    }
}

/// Checks an answer against the schema that the description has for its status.
fn conforms(described: &Value, route: &RouteName<'_>, status: u16, body: &Value) -> Result<(), String> {
    let response =
        &described["paths"][route.path][route.method.to_lowercase()]["responses"][status.to_string()];
    let content =
        response["content"].as_object().ok_or_else(|| format!("status {status} is not described"))?;
    match content.get("application/json") {
        Some(media) => {
            schema::check(described, &media["schema"], body, "body")?;
            let unnamed = schema::unnamed(described, &[&media["schema"]], body, "body");
            if unnamed.is_empty() { Ok(()) } else { Err(format!("no schema names {}", unnamed.join(", "))) }
        }
        None if status < 300 => Ok(()),
        None => Err(format!("status {status}: {body}")),
    }
}

/// Writes a JSON value in one line, with a space after commas and colons, as the file has it.
fn in_one_line(value: &Value) -> String {
    struct Spaced;
    impl ser::Formatter for Spaced {
        fn begin_array_value<W: ?Sized + io::Write>(
            &mut self,
            writer: &mut W,
            first: bool,
        ) -> io::Result<()> {
            writer.write_all(if first { b"" } else { b", " })
        }
        fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
            writer.write_all(if first { b"" } else { b", " })
        }
        fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
            writer.write_all(b": ")
        }
    }
    let mut line = Vec::new();
    value.serialize(&mut ser::Serializer::with_formatter(&mut line, Spaced)).expect("a value is JSON");
    String::from_utf8(line).expect("JSON is UTF-8")
}

/// Returns the text of the file with another answer of a route.
fn with_answer(text: &str, name: &str, answer: &Value) -> String {
    let (before, entry) =
        text.split_once(&format!("\n    \"{name}\": {{\n")).expect("the file has the route");
    let (inner, rest) = entry.split_once("\n      \"answer\": ").expect("the route has an answer");
    let (_, after) = rest.split_once('\n').expect("an answer is no last line");
    format!("{before}\n    \"{name}\": {{\n{inner}\n      \"answer\": {},\n{after}", in_one_line(answer))
}

#[test]
fn recorded_answers_are_those_of_a_node() {
    let root = root();
    let (mut text, parts) = recorded(&root);
    let described = routes::description().expect("each route has an entry");
    let mut session = ExampleSession::start();
    let mut wrong = Vec::new();
    for step in steps(&parts) {
        let Some(route) = RouteName::parse(step) else {
            session.client_step(step);
            continue;
        };
        let entry = &parts["operations"][step];
        let (status, body) = session.ask(&route, &entry["example"], "");
        let real = serde_json::from_str(&body).unwrap_or(Value::Null);
        if let Err(why) = conforms(&described, &route, status, &real) {
            wrong.push(format!("{step}: {why}"));
        }
        match judge(&session.masks, step, &entry["answer"], status, &body) {
            Ok(answer) => text = with_answer(&text, step, &answer),
            Err(why) => wrong.push(format!("{step}: {why}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let now: Value = serde_json::from_str(&text).expect("JSON");
    let differing: Vec<String> = steps(&parts)
        .into_iter()
        .map(|step| (step, &now["operations"][step]["answer"], &parts["operations"][step]["answer"]))
        .filter(|(_, real, recorded)| real != recorded)
        .map(|(step, real, recorded)| format!("{step}\n  answers {real}\n  recorded is {recorded}"))
        .collect();
    let updates = env::var("TIDEGATE_UPDATE_DOCS").is_ok_and(|value| value == "1");
    assert!(updates || differing.is_empty(), "run `cargo xtask docs`:\n{}", differing.join("\n"));
    generated::settle(&root, FILE, &text);
}

#[test]
fn every_route_has_an_example_that_is_played_or_says_why_not() {
    let (_, parts) = recorded(&root());
    let described = routes::description().expect("each route has an entry");
    let steps = steps(&parts);
    let played: BTreeSet<&str> = steps.iter().copied().filter(|it| RouteName::parse(it).is_some()).collect();
    let count = steps.iter().filter(|it| RouteName::parse(it).is_some()).count();
    assert_eq!(played.len(), count, "a route is played once");
    for (name, entry) in parts["operations"].as_object().expect("operations") {
        let route = RouteName::parse(name).expect("a route has a method and a path");
        assert!(entry["example"].is_object(), "{name} has no example");
        let only_shown = entry["x-example-only"].is_string();
        assert_ne!(only_shown, played.contains(name.as_str()), "{name}: play it, or say why not");
        if only_shown && let Some(body) = entry["answer"].get("body") {
            let status = entry["answer"]["status"].as_u64().expect("a status");
            let status = u16::try_from(status).expect("a status");
            conforms(&described, &route, status, body).unwrap_or_else(|why| panic!("{name}: {why}"));
        }
        let body = &described["paths"][route.path][route.method.to_lowercase()]["requestBody"];
        if let Some(example) = entry["example"].get("body") {
            let schema = &body["content"]["application/json"]["schema"];
            schema::check(&described, schema, example, "body").unwrap_or_else(|why| panic!("{name}: {why}"));
        } else {
            assert_ne!(body["required"], true, "the example of {name} has no body");
        }
    }
}

/// A node names the parameters that it knows in its refusal of an unknown one.
#[test]
fn parameters_of_queries_are_those_that_the_node_reads() {
    let (_, parts) = recorded(&root());
    let described = routes::description().expect("each route has an entry");
    let mut session = ExampleSession::start();
    session.client_step("login bob phone");
    let mut wrong = Vec::new();
    for route in routes::ROUTES {
        let method = route.method.to_uppercase();
        // Routes that read a body have no query; the stream reads none and has no end; probes ignore what they don't know.
        if !["GET", "DELETE"].contains(&method.as_str())
            || ["/v1/stats/stream", "/readyz"].contains(&route.path)
        {
            continue;
        }
        let name = format!("{method} {}", route.path);
        let documented: BTreeSet<String> = described["paths"][route.path][route.method]["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|it| match it["$ref"].as_str() {
                Some(path) => described.pointer(&path[1..]).expect("a parameter"),
                None => it,
            })
            .filter(|it| it["in"] == "query")
            .map(|it| it["name"].as_str().expect("a name").to_owned())
            .collect();
        let example = json!({"path": parts["operations"][&name]["example"]["path"]});
        let asked = RouteName { method: &method, path: route.path };
        let (_, body) = session.ask(&asked, &example, "unknown_parameter=1");
        let detail = serde_json::from_str::<Value>(&body).ok();
        let detail = detail.and_then(|it| it["detail"].as_str().map(str::to_owned)).unwrap_or_default();
        let expected = detail.split_once("unknown field `unknown_parameter`").map_or("", |(_, rest)| rest);
        let mut read: BTreeSet<String> = expected.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        if name == "DELETE /v1/connections/{id}" {
            // It shares its parameters with the route of a user, and refuses this one.
            read.remove("device");
        }
        if read != documented {
            wrong.push(format!("{name}: reads {read:?}, documented are {documented:?}; {body}"));
        }
        if route.path.starts_with("/v1/connections/") || route.path.ends_with("/connections") {
            // The request may have closed it.
            session.client_step("login bob phone");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
