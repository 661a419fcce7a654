//! Description of the admin API in OpenAPI 3.1. Methods, paths and rights come from the table of routes; parameters, bodies
//! and responses from `openapi.json`, which has an entry for each route.

mod examples;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use self::examples::{ApiAnswer, ApiExample};
use crate::{
    api::access::{AdminRoute, Effect, RouteNeed},
    keys::Scope,
};

const PARTS: &str = include_str!("openapi.json");

/// Statuses that the server or the same-origin check may give to any request.
const OF_ALL: [&str; 7] = ["400", "403", "408", "413", "421", "500", "504"];

/// Statuses that are given outside the routes, without an id of the request.
const WITHOUT_ID: [&str; 4] = ["408", "413", "500", "504"];

/// Content of `openapi.json`.
#[derive(Deserialize)]
struct ApiParts {
    info: Map<String, Value>,
    /// Groups of routes with their titles, in the order of the page.
    tags: Vec<ApiTag>,
    /// Entries by method and path.
    operations: BTreeMap<String, ApiOperation>,
    /// Parameters of paths by name.
    parameters: BTreeMap<String, Map<String, Value>>,
    /// Descriptions of refusals by status.
    errors: BTreeMap<String, String>,
    components: Map<String, Value>,
}

/// Group of routes.
#[derive(Deserialize, Serialize)]
struct ApiTag {
    name: String,
    description: String,
}

/// Facts of a route that the table does not have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ApiOperation {
    summary: String,
    /// Name of the group of the route.
    #[serde(default)]
    tag: String,
    /// Lines of Markdown.
    #[serde(default)]
    description: Vec<String>,
    /// Why no test plays the example.
    #[serde(rename = "x-example-only")]
    example_only: Option<String>,
    #[serde(default)]
    example: ApiExample,
    /// Response to the example; `None` if there is no response.
    answer: Option<ApiAnswer>,
    /// Parameters of the query, and those of the path that are not the usual ones.
    #[serde(default)]
    parameters: Vec<Value>,
    /// Schema of the body.
    body: Option<Value>,
    #[serde(default)]
    body_is_optional: bool,
    /// Responses that are no refusals, by status.
    responses: BTreeMap<String, ApiResponse>,
    /// Descriptions of refusals that only this route has, or that mean something else here.
    #[serde(default)]
    errors: BTreeMap<String, String>,
}

/// Response that is no refusal.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApiResponse {
    description: String,
    /// Media type; `None` is JSON.
    r#type: Option<String>,
    schema: Value,
}

/// Returns the description of the routes.
///
/// # Errors
/// A route has no entry in `openapi.json`, or an entry has no route.
pub(super) fn describe(routes: &[AdminRoute]) -> Result<Value, String> {
    let parts: ApiParts = serde_json::from_str(PARTS).map_err(|error| format!("openapi.json: {error}"))?;
    let name = |route: &AdminRoute| format!("{} {}", route.method.to_uppercase(), route.path);
    let names: BTreeSet<String> = routes.iter().map(name).collect();
    if let Some(unknown) = parts.operations.keys().find(|entry| !names.contains(*entry)) {
        return Err(format!("openapi.json: there is no route `{unknown}`"));
    }
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in routes {
        let entry = parts.operations.get(&name(route));
        let entry = entry.ok_or_else(|| format!("openapi.json: no entry for `{}`", name(route)))?;
        paths
            .entry(route.path)
            .or_default()
            .insert(route.method.to_owned(), operation(&parts, route, entry)?);
    }
    let mut info = parts.info;
    info.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    let mut components = parts.components;
    if let Some(schemas) = components.get_mut("schemas").and_then(Value::as_object_mut) {
        schemas.insert("Scope".into(), json!({"type": "string", "enum": Scope::ALL}));
    }
    Ok(
        json!({"openapi": "3.1.0", "info": info, "tags": parts.tags, "paths": paths, "components": components}),
    )
}

fn operation(parts: &ApiParts, route: &AdminRoute, entry: &ApiOperation) -> Result<Value, String> {
    let (right, security) = match route.need {
        RouteNeed::Open => ("It needs no key.".to_owned(), json!([])),
        RouteNeed::AnyKey => ("It needs any key.".to_owned(), json!([{"key": []}])),
        RouteNeed::Scope(scope) => {
            (format!("It needs a key with the scope `{scope}`."), json!([{"key": [scope]}]))
        }
    };
    if !parts.tags.iter().any(|tag| tag.name == entry.tag) {
        return Err(format!(
            "openapi.json: `{} {}` has no tag of `tags`",
            route.method.to_uppercase(),
            route.path
        ));
    }
    let prose = examples::prose(&entry.description);
    let mut described = json!({
        "operationId": operation_id(route),
        "tags": [entry.tag],
        "summary": entry.summary,
        "description": if prose.is_empty() { right } else { format!("{right}\n\n{prose}") },
        "security": security,
        "parameters": parameters(parts, route, entry)?,
        "responses": responses(parts, route, entry)?,
    });
    if let Some(why) = &entry.example_only {
        described["x-example-only"] = why.as_str().into();
    }
    if let Some(schema) = &entry.body {
        let mut media = json!({"schema": schema});
        if let Some(body) = &entry.example.body {
            media["example"] = body.clone();
        }
        let content = json!({"application/json": media});
        described["requestBody"] = json!({"required": !entry.body_is_optional, "content": content});
    }
    Ok(described)
}

/// Returns a name such as `getUsersByUserPresence`.
fn operation_id(route: &AdminRoute) -> String {
    let mut id = route.method.to_owned();
    for part in route.path.split(['/', '.', ':']).filter(|part| !["", "v1"].contains(part)) {
        let parameter = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
        id.push_str(if parameter.is_some() { "By" } else { "" });
        let word = parameter.unwrap_or(part);
        id.extend(word.chars().take(1).map(|first| first.to_ascii_uppercase()).chain(word.chars().skip(1)));
    }
    id
}

fn parameters(parts: &ApiParts, route: &AdminRoute, entry: &ApiOperation) -> Result<Vec<Value>, String> {
    let shared = parts.components.get("parameters").cloned().unwrap_or_default();
    let named = |parameter: &Value| match parameter["$ref"].as_str() {
        Some(path) => shared[path.rsplit('/').next().unwrap_or_default()]["name"].clone(),
        None => parameter["name"].clone(),
    };
    let mut all = Vec::new();
    for part in route.path.split('/') {
        let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) else { continue };
        if entry.parameters.iter().any(|own| named(own) == name) {
            continue;
        }
        let usual = parts.parameters.get(name);
        let mut usual = usual.ok_or_else(|| format!("openapi.json: no parameter `{name}`"))?.clone();
        usual.extend([("name", json!(name)), ("in", json!("path")), ("required", json!(true))].map(owned));
        all.push(Value::Object(usual));
    }
    all.extend(entry.parameters.iter().cloned());
    entry.example.fill(&mut all, &shared);
    Ok(all)
}

fn owned((key, value): (&str, Value)) -> (String, Value) {
    (key.to_owned(), value)
}

fn responses(parts: &ApiParts, route: &AdminRoute, entry: &ApiOperation) -> Result<Value, String> {
    let mut statuses: BTreeSet<&str> =
        OF_ALL.into_iter().chain(entry.errors.keys().map(String::as_str)).collect();
    let has = |is: bool, statuses: &[&'static str]| if is { statuses.to_vec() } else { Vec::new() };
    statuses.extend(has(route.path.contains('{'), &["404"]));
    statuses.extend(has(route.need != RouteNeed::Open, &["401", "429"]));
    statuses.extend(has(route.method != "get", &["415"]));
    statuses.extend(has(matches!(route.effect, Effect::Change | Effect::Crash), &["503"]));
    let mut all = Map::new();
    for status in statuses {
        let about = entry.errors.get(status).or_else(|| parts.errors.get(status));
        let about = about.ok_or_else(|| format!("openapi.json: no description of the status {status}"))?;
        let content =
            json!({"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}});
        let mut headers = headers(status);
        if matches!(status, "429" | "503") {
            headers["Retry-After"] = json!({"$ref": "#/components/headers/RetryAfter"});
        }
        all.insert(status.to_owned(), json!({"description": about, "headers": headers, "content": content}));
    }
    for (status, response) in &entry.responses {
        let media = response.r#type.as_deref().unwrap_or("application/json");
        let mut content = json!({media: {"schema": response.schema}});
        let answer = entry.answer.as_ref().filter(|answer| answer.status.to_string() == *status);
        if let Some(example) = answer.and_then(ApiAnswer::example) {
            content[media]["example"] = example;
        }
        let about = &response.description;
        all.insert(
            status.clone(),
            json!({"description": about, "headers": headers(status), "content": content}),
        );
    }
    Ok(Value::Object(all))
}

fn headers(status: &str) -> Value {
    let header = |name: &str| json!({"$ref": format!("#/components/headers/{name}")});
    let mut all = Map::new();
    if !WITHOUT_ID.contains(&status) {
        all.insert("X-Request-Id".into(), header("RequestId"));
    }
    if status == "401" {
        all.insert("WWW-Authenticate".into(), header("Authenticate"));
    }
    Value::Object(all)
}
