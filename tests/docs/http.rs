//! Reference part of `docs/http.md`: a section for each route, from the table of routes and `openapi.json`. Also
//! `docs/openapi.json`: the description that a node serves.

use std::fmt::Write as _;

use serde_json::Value;
use tidegate::{
    api::{
        access::{AdminRoute, RouteNeed},
        routes::{self, ROUTES},
    },
    keys::Scope,
};

use super::{read, settle, with_block};

const PAGE: &str = "docs/http.md";

/// Description of the routes for programs that have no node, such as generators of clients.
const DESCRIPTION: &str = "docs/openapi.json";

/// JSON up to this length is one line.
const COLUMNS: usize = 130;

/// Facts of the routes.
struct Reference {
    /// `openapi.json`.
    parts: Value,
    /// The description that a node serves.
    described: Value,
}

impl Reference {
    fn load() -> Self {
        let parts = serde_json::from_str(&read("src/api/routes/openapi.json")).expect("the parts are JSON");
        Self { parts, described: routes::description().expect("each route has an entry") }
    }

    fn entry(&self, route: &AdminRoute) -> &Value {
        &self.parts["operations"][name_of(route)]
    }

    /// Returns the title of each tag with its routes.
    fn tags(&self) -> Vec<(&str, Vec<&'static AdminRoute>)> {
        let tags = self.parts["tags"].as_array().expect("a list of tags");
        tags.iter()
            .map(|tag| {
                let routes = ROUTES.iter().filter(|route| self.entry(route)["tag"] == tag["name"]);
                (text(&tag["description"]), routes.collect())
            })
            .collect()
    }

    fn index(&self) -> String {
        let mut block = String::new();
        for (title, routes) in self.tags() {
            write!(block, "**{title}**\n\n| route | scope | what |\n|---|---|---|\n").expect("a String");
            for route in routes {
                let (name, summary) = (name_of(route), text(&self.entry(route)["summary"]));
                let anchor = anchor(&name);
                writeln!(block, "| [`{name}`](#{anchor}) | {} | {summary} |", need(route)).expect("a String");
            }
            block.push('\n');
        }
        block
    }

    fn sections(&self) -> String {
        let mut block = String::new();
        for (title, routes) in self.tags() {
            write!(block, "## {title}\n\n").expect("a String");
            routes.into_iter().for_each(|route| self.section(route, &mut block));
        }
        block
    }

    fn section(&self, route: &AdminRoute, block: &mut String) {
        let entry = self.entry(route);
        let summary = text(&entry["summary"]);
        write!(block, "### `{}`\n\n{summary} Scope: {}.\n\n", name_of(route), need(route)).expect("a String");
        write!(block, "```\n{}```\n\n", example(route, entry)).expect("a String");
        if let Some(why) = entry["x-example-only"].as_str() {
            write!(block, "No test plays this example: {why}.\n\n").expect("a String");
        }
        let lines = entry["description"].as_array().into_iter().flatten().map(text);
        let prose: Vec<&str> = lines.collect();
        if !prose.is_empty() {
            write!(block, "{}\n\n", prose.join("\n")).expect("a String");
        }
        let parameters = self.parameters(route);
        if !parameters.is_empty() {
            write!(block, "| parameter | |\n|---|---|\n{parameters}\n").expect("a String");
        }
        let errors = entry["errors"].as_object().into_iter().flatten();
        let errors: Vec<String> =
            errors.map(|(status, about)| format!("- {status}: {}\n", text(about))).collect();
        if !errors.is_empty() {
            write!(block, "Errors of its own:\n\n{}\n", errors.concat()).expect("a String");
        }
    }

    /// Returns a row for each parameter but those of the path.
    fn parameters(&self, route: &AdminRoute) -> String {
        let all = self.described["paths"][route.path][route.method]["parameters"].as_array();
        let mut rows = String::new();
        for parameter in all.into_iter().flatten() {
            let parameter = match parameter["$ref"].as_str() {
                Some(path) => self.described.pointer(&path[1..]).expect("a shared parameter"),
                None => parameter,
            };
            if parameter["in"] == "path" {
                continue;
            }
            let header = if parameter["in"] == "header" { "header " } else { "" };
            let mut about: Vec<String> =
                vec![parameter["description"].as_str().unwrap_or_default().to_owned()];
            about.extend(bounds(&parameter["schema"], &about[0]));
            about.retain(|part| !part.is_empty());
            writeln!(rows, "| {header}`{}` | {} |", text(&parameter["name"]), about.join(" "))
                .expect("a String");
        }
        rows
    }
}

/// Returns the choices, the range and the default of a parameter as a sentence, without choices that `about` has.
fn bounds(schema: &Value, about: &str) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(choices) = schema["enum"].as_array() {
        let choices: Vec<String> = choices.iter().map(|it| format!("`{}`", text(it))).collect();
        if !choices.iter().all(|choice| about.contains(choice.as_str())) {
            parts.push(choices.join(", "));
        }
    }
    if let (Some(min), Some(max)) = (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
        parts.push(format!("{min} to {max}"));
    }
    if let Some(default) = schema.get("default") {
        let default = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
        parts.push(format!("`{default}` by default"));
    }
    (!parts.is_empty()).then(|| format!("{}.", parts.join("; ")))
}

fn name_of(route: &AdminRoute) -> String {
    format!("{} {}", route.method.to_uppercase(), route.path)
}

fn need(route: &AdminRoute) -> String {
    match route.need {
        RouteNeed::Open => "none, no key".to_owned(),
        RouteNeed::AnyKey => "any key".to_owned(),
        RouteNeed::Scope(scope) => format!("`{scope}`"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Returns the anchor of the heading of a route.
fn anchor(name: &str) -> String {
    let letters = name.chars().flat_map(char::to_lowercase);
    let kept = letters.filter(|c| c.is_alphanumeric() || ['-', '_', ' '].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns a call of `curl` and the answer to it.
fn example(route: &AdminRoute, entry: &Value) -> String {
    let (asked, answer) = (&entry["example"], &entry["answer"]);
    let mut path = route.path.to_owned();
    for (name, value) in asked["path"].as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        path = path.replace(&format!("{{{name}}}"), &value.replace('/', "%2F"));
    }
    let query = asked["query"].as_object().into_iter().flatten();
    let query = query.map(|(name, value)| match value {
        Value::String(value) if value.is_empty() => name.clone(),
        Value::String(value) => format!("{name}={value}"),
        value => format!("{name}={value}"),
    });
    let query = query.collect::<Vec<_>>().join("&");
    let query = if query.is_empty() { query } else { format!("?{query}") };
    let mut url = format!("http://127.0.0.1:7801{path}{query}");
    if url.contains(['?', '*', '{', ' ']) {
        url = format!("'{url}'");
    }
    let is_stream = entry["responses"]["200"]["type"] == "text/event-stream";
    let mut call = format!("$ curl{}", if is_stream { " -N" } else { "" });
    let method = route.method.to_uppercase();
    let has_usual_method = if asked.get("body").is_some() { method == "POST" } else { method == "GET" };
    if !has_usual_method {
        call += &format!(" -X {method}");
    }
    call += &format!(" {url}");
    if method != "GET" {
        call += " -H 'content-type: application/json'";
    }
    for (name, value) in asked["headers"].as_object().into_iter().flatten() {
        call += &format!(" -H '{name}: {}'", text(value));
    }
    if let Some(body) = asked.get("body") {
        call += &format!(" -d '{body}'");
    }
    let status = match answer["status"].as_u64() {
        None | Some(200) => String::new(),
        Some(status) => format!("HTTP {status}\n"),
    };
    let body = match (answer.get("body"), answer.get("excerpt")) {
        (Some(body), _) => laid_out(body, 0) + "\n",
        (None, Some(Value::Array(lines))) => {
            lines.iter().map(|line| text(line).to_owned() + "\n").collect::<String>() + "…\n"
        }
        (None, Some(excerpt)) => cut_off(&laid_out(excerpt, 0)),
        (None, None) => String::new(),
    };
    format!("{call}\n{status}{body}")
}

/// Returns an object as one that has further members.
fn cut_off(object: &str) -> String {
    let members = object.trim_end_matches('}').trim_end();
    if object.contains('\n') { format!("{members},\n  …\n}}\n") } else { format!("{members},…}}\n") }
}

/// Returns the table of scopes.
fn scopes() -> String {
    let mut block = String::from("| scope | allows | routes |\n|---|---|---|\n");
    let mut row = |name: &str, allows: &str, need: RouteNeed| {
        let routes = ROUTES.iter().filter(|route| route.need == need);
        let routes = routes.map(|route| format!("`{}`", name_of(route))).collect::<Vec<_>>().join(", ");
        writeln!(block, "| {name} | {allows} | {routes} |").expect("a String");
    };
    row(
        "no key",
        "Probes, metrics, and the facts that the console needs first. The console's page and files need none either.",
        RouteNeed::Open,
    );
    row("any key", "What the key allows, and requests that another node checks.", RouteNeed::AnyKey);
    for scope in Scope::ALL {
        row(&format!("`{scope}`"), scope.what(), RouteNeed::Scope(*scope));
    }
    block
}

/// Returns JSON in one line if it is short, otherwise with a line for each member.
fn laid_out(value: &Value, depth: usize) -> String {
    let short = value.to_string();
    if short.len() + 2 * depth <= COLUMNS {
        return short;
    }
    let (inner, outer) = ("  ".repeat(depth + 1), "  ".repeat(depth));
    match value {
        Value::Object(members) => {
            let lines: Vec<String> = members
                .iter()
                .map(|(name, member)| format!("{inner}\"{name}\": {}", laid_out(member, depth + 1)))
                .collect();
            format!("{{\n{}\n{outer}}}", lines.join(",\n"))
        }
        Value::Array(items) => {
            let lines: Vec<String> =
                items.iter().map(|item| format!("{inner}{}", laid_out(item, depth + 1))).collect();
            format!("[\n{}\n{outer}]", lines.join(",\n"))
        }
        _ => short,
    }
}

#[test]
fn reference_of_the_admin_api_is_current() {
    let reference = Reference::load();
    let page = with_block(PAGE, &read(PAGE), "scopes", &scopes());
    let page = with_block(PAGE, &page, "index", &reference.index());
    let page = with_block(PAGE, &page, "routes", &reference.sections());
    assert!(page.len() < 1024 * 1024, "the page has {} bytes", page.len());
    settle(PAGE, &page);
}

/// Its version is that of the package, which changes with a release and not with each commit.
#[test]
fn description_in_the_tree_is_that_of_a_node() {
    let described = routes::description().expect("each route has an entry");
    let file = laid_out(&described, 0) + "\n";
    assert_eq!(serde_json::from_str::<Value>(&file).ok(), Some(described), "the layout changes nothing");
    settle(DESCRIPTION, &file);
}
