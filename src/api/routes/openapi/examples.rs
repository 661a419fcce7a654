//! Prose and examples of a route, in the form that the description of the admin API has them.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Request of a route. The examples of all routes, in the order of `session`, are one session with a fresh node.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ApiExample {
    /// Parameters of the path by name.
    #[serde(default)]
    path: Map<String, Value>,
    /// Parameters of the query by name.
    #[serde(default)]
    query: Map<String, Value>,
    /// Header fields by name.
    #[serde(default)]
    headers: Map<String, Value>,
    /// Body, if the request has one.
    pub(super) body: Option<Value>,
}

/// Response to the request of an example.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ApiAnswer {
    /// Status code.
    pub(super) status: u16,
    body: Option<Value>,
    /// Members or lines of a body that is too long, in place of `body`.
    excerpt: Option<Value>,
}

impl ApiExample {
    /// Adds the values of the example to the parameters of an operation. `shared` has those that are named by `$ref`.
    pub(super) fn fill(&self, parameters: &mut [Value], shared: &Value) {
        for parameter in parameters {
            let full = match parameter["$ref"].as_str() {
                Some(path) => &shared[path.rsplit('/').next().unwrap_or_default()],
                None => &*parameter,
            };
            let values = match full["in"].as_str() {
                Some("path") => &self.path,
                Some("query") => &self.query,
                _ => &self.headers,
            };
            let Some(value) = full["name"].as_str().and_then(|name| values.get(name)) else { continue };
            // A reference can't have an example of its own.
            let mut full = full.clone();
            full["example"] = value.clone();
            *parameter = full;
        }
    }
}

impl ApiAnswer {
    /// Returns the body as the description shows it.
    pub(super) fn example(&self) -> Option<Value> {
        match &self.excerpt {
            Some(Value::Array(lines)) => {
                let lines: Vec<&str> = lines.iter().filter_map(Value::as_str).collect();
                Some(lines.join("\n").into())
            }
            other => other.clone().or_else(|| self.body.clone()),
        }
    }
}

/// Returns lines of Markdown as a text whose links to pages of the repository, which a reader of the description does not have,
/// are plain words.
pub(super) fn prose(lines: &[String]) -> String {
    let text = lines.join("\n");
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text.as_str());
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, tail)) = after.split_once(')') else { break };
        match before.rsplit_once('[') {
            Some((outside, words)) if !target.starts_with("https://") => plain.extend([outside, words]),
            _ => plain.extend([before, "](", target, ")"]),
        }
        rest = tail;
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_pages_become_words_and_links_to_the_web_stay() {
        let lines = ["See [bans](bans.md#b) and [`a`](#a):", "", "[OpenAPI](https://spec.example/) [1] ]("];
        let expected = "See bans and `a`:\n\n[OpenAPI](https://spec.example/) [1] ](";
        assert_eq!(prose(&lines.map(str::to_owned)), expected);
    }
}
