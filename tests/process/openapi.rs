//! Description of the admin API, and requests that break it in ways that only the form of a request can.

#[path = "openapi/examples.rs"]
mod examples;

use std::collections::BTreeSet;

use serde_json::Value;
use tidegate::api::{access::RouteNeed, routes};
use tidegate_protocol::Code;

use super::keys::{Keys, ask, refusal};

/// Returns all values of `$ref` in a value.
fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn description_has_every_route_with_its_right() {
    let description = routes::description().expect("each route has an entry, and each entry a route");
    let paths = description["paths"].as_object().expect("paths");
    let described: usize = paths.values().filter_map(Value::as_object).map(serde_json::Map::len).sum();
    assert_eq!(described, routes::ROUTES.len());
    let mut ids = BTreeSet::new();
    for route in routes::ROUTES {
        let entry = &paths[route.path][route.method];
        let needs = entry["security"].as_array().expect("a list");
        match route.need {
            RouteNeed::Open => assert!(needs.is_empty(), "{route:?}"),
            RouteNeed::AnyKey => assert_eq!(needs[0]["key"], Value::Array(Vec::new()), "{route:?}"),
            RouteNeed::Scope(scope) => assert_eq!(needs[0]["key"][0], scope.name(), "{route:?}"),
        }
        assert!(ids.insert(entry["operationId"].as_str().expect("a name")), "{route:?}");
        let named = entry["parameters"].as_array().expect("a list").len();
        assert!(named >= route.path.matches('{').count(), "{route:?}");
    }
    let mut named = BTreeSet::new();
    references(&description, &mut named);
    for reference in named {
        let pointer = reference.strip_prefix('#').expect("a part of the description");
        assert!(description.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn requests_of_a_wrong_form_get_a_code_and_change_nothing() {
    let keys = Keys::new();
    let key = keys.add("root", "groups,users,operate", &[]);
    let node = keys.start(&[]);
    let ask = |method: &str, path: &str, body: &str| ask(node.admin(), method, path, Some(&key), body);
    let served = ask("GET", "/v1/openapi.json", "");
    let served: Value = serde_json::from_slice(&served.body).expect("JSON");
    assert_eq!(Ok(served), routes::description());
    for (method, path, body, code) in [
        // Serde would read the fields of a struct from an array, in their order.
        ("POST", "/v1/weight", "[0, 100]", Code::BadContent),
        ("POST", "/v1/weight", "null", Code::BadContent),
        ("POST", "/v1/drain", "[]", Code::BadContent),
        ("POST", "/v1/drain", r#"["noticed"]"#, Code::BadContent),
        ("POST", "/v1/reload", "[]", Code::BadContent),
        ("POST", "/v1/groups", r#"["team", ["bob"]]"#, Code::BadContent),
        ("POST", "/v1/dev/token", r#"["bob"]"#, Code::BadContent),
        ("POST", "/v1/users/bob/revoke", r#"["now"]"#, Code::BadContent),
        ("GET", "/v1/users/%ff/presence", "", Code::BadId),
        ("PUT", "/v1/users/bob/blocks/%ff", "", Code::BadId),
        ("GET", "/v1/groups/%ff", "", Code::BadId),
        ("GET", "/readyz?verbose=1&verbose=2", "", Code::BadContent),
        ("GET", "/v1/trace?trace=AAA", "", Code::BadContent),
        ("GET", "/v1/trace?trace=", "", Code::BadContent),
        ("GET", "/v1/trace?trace=%2B0000000000000000000000000000001", "", Code::BadContent),
    ] {
        let reply = ask(method, path, body);
        assert_eq!((reply.status, refusal(&reply).0.as_str()), (400, code.name()), "{method} {path} {body}");
        assert_eq!(reply.field("content-type"), Some("application/problem+json"), "{method} {path} {body}");
    }
    let weight = String::from_utf8(ask("POST", "/v1/weight", "{}").body).expect("text");
    assert_eq!(weight, r#"{"share":null,"weight":100}"#);
    assert_eq!(ask("GET", "/v1/groups/team", "").status, 404);
    assert_eq!(ask("GET", "/v1/trace?trace=0AF7651916CD43DD8448EB211C80319C", "").status, 200);
    assert_eq!(String::from_utf8(ask("GET", "/livez", "").body).expect("text"), r#"{"state":"ready"}"#);
    // Last, because the process ends: a body of `null` counts as none.
    assert_eq!(ask("POST", "/v1/drain", "null").status, 202);
}
