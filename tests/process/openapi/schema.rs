//! Check of a response against its schema in the description. An unknown keyword is an error, so that no part of a schema is
//! skipped unnoticed; `pattern` is judged by schemathesis alone, which has regular expressions.

use serde_json::Value;

/// Keywords that describe, and those that other tests judge.
const NOT_JUDGED: [&str; 5] = ["description", "default", "example", "examples", "pattern"];

/// Checks a value against a schema of `root`; `at` is the place of the value.
///
/// # Errors
/// The value is not as the schema says, or the schema has an unknown keyword.
pub(super) fn check(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let Some(keywords) = schema.as_object() else {
        return if *schema == Value::Bool(true) { Ok(()) } else { Err(format!("{at}: not allowed")) };
    };
    for (keyword, rule) in keywords {
        let holds = match keyword.as_str() {
            "$ref" => {
                let path = rule.as_str().and_then(|path| path.strip_prefix('#'));
                let target = path.and_then(|path| root.pointer(path));
                check(root, target.ok_or_else(|| format!("{at}: no {rule}"))?, value, at)?;
                true
            }
            "allOf" => {
                options(rule).iter().try_for_each(|option| check(root, option, value, at))?;
                true
            }
            "anyOf" => matching(root, rule, value) > 0,
            "oneOf" => matching(root, rule, value) == 1,
            "not" => check(root, rule, value, at).is_err(),
            "const" => rule == value,
            "enum" => options(rule).contains(value),
            "type" => match rule {
                Value::Array(types) => types.iter().any(|it| has_type(it, value)),
                one => has_type(one, value),
            },
            "properties" | "required" | "additionalProperties" | "propertyNames" => {
                of_object(root, keywords, keyword, value, at)?;
                true
            }
            "prefixItems" => {
                let items = value.as_array().into_iter().flatten().zip(options(rule));
                items
                    .enumerate()
                    .try_for_each(|(n, (item, rule))| check(root, rule, item, &format!("{at}[{n}]")))?;
                true
            }
            "items" => {
                let first = keywords.get("prefixItems").map_or(0, |rule| options(rule).len());
                let mut items = value.as_array().into_iter().flatten().enumerate().skip(first);
                items.try_for_each(|(n, item)| check(root, rule, item, &format!("{at}[{n}]")))?;
                true
            }
            "minimum" => value.as_f64().is_none_or(|number| Some(number) >= rule.as_f64()),
            "maximum" => value.as_f64().is_none_or(|number| Some(number) <= rule.as_f64()),
            "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= number(rule)),
            "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= number(rule)),
            "minLength" => value.as_str().is_none_or(|text| text.chars().count() as u64 >= number(rule)),
            "maxLength" => value.as_str().is_none_or(|text| text.chars().count() as u64 <= number(rule)),
            "minProperties" => value.as_object().is_none_or(|it| it.len() as u64 >= number(rule)),
            "maxProperties" => value.as_object().is_none_or(|it| it.len() as u64 <= number(rule)),
            known if NOT_JUDGED.contains(&known) => true,
            other => return Err(format!("{at}: unknown keyword {other}")),
        };
        if !holds {
            return Err(format!("{at}: {value} is not of {keyword} {rule}"));
        }
    }
    Ok(())
}

fn of_object(
    root: &Value,
    schema: &serde_json::Map<String, Value>,
    keyword: &str,
    value: &Value,
    at: &str,
) -> Result<(), String> {
    let (Some(members), rule) = (value.as_object(), &schema[keyword]) else { return Ok(()) };
    if keyword == "required" {
        let missing = options(rule).iter().filter_map(Value::as_str).find(|it| !members.contains_key(*it));
        return missing.map_or(Ok(()), |name| Err(format!("{at}: no {name}")));
    }
    let is_named = |name: &String| schema.get("properties").is_some_and(|them| them.get(name).is_some());
    members.iter().try_for_each(|(name, member)| {
        let inner = format!("{at}.{name}");
        match keyword {
            "properties" => rule.get(name).map_or(Ok(()), |rule| check(root, rule, member, &inner)),
            "propertyNames" => check(root, rule, &name.as_str().into(), &inner),
            _ if is_named(name) => Ok(()),
            _ => check(root, rule, member, &inner),
        }
    })
}

/// Returns the members of a value that none of the schemas names, although they name others.
pub(super) fn unnamed(root: &Value, schemas: &[&Value], value: &Value, at: &str) -> Vec<String> {
    let parts: Vec<&Value> = schemas.iter().flat_map(|schema| parts(root, schema)).collect();
    match value {
        Value::Object(members) => {
            let rest: Vec<&Value> = parts.iter().filter_map(|it| it.get("additionalProperties")).collect();
            let named = |name: &str| -> Vec<&Value> {
                parts.iter().filter_map(|it| it.get("properties")?.get(name)).collect()
            };
            let is_free = rest.is_empty() && !parts.iter().any(|it| it.get("properties").is_some());
            let inner = |(name, member): (&String, &Value)| {
                let (at, own) = (format!("{at}.{name}"), named(name));
                match (
                    own.is_empty(),
                    rest.iter().any(|rule| rule.is_object() || **rule == Value::Bool(true)),
                ) {
                    (false, _) => unnamed(root, &own, member, &at),
                    (true, true) => unnamed(root, &rest, member, &at),
                    (true, false) => vec![at],
                }
            };
            if is_free { Vec::new() } else { members.iter().flat_map(inner).collect() }
        }
        Value::Array(items) => {
            let rules: Vec<&Value> = parts.iter().filter_map(|it| it.get("items")).collect();
            items.iter().flat_map(|item| unnamed(root, &rules, item, &format!("{at}[]"))).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns a schema with those that it refers to or combines.
fn parts<'a>(root: &'a Value, schema: &'a Value) -> Vec<&'a Value> {
    let target = schema["$ref"].as_str().and_then(|path| root.pointer(path.strip_prefix('#')?));
    let combined = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|word| options(&schema[word]));
    let inner = target.into_iter().chain(combined).flat_map(|inner| parts(root, inner));
    [schema].into_iter().chain(inner).collect()
}

fn options(rule: &Value) -> &[Value] {
    rule.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn matching(root: &Value, rule: &Value, value: &Value) -> usize {
    options(rule).iter().filter(|option| check(root, option, value, "").is_ok()).count()
}

fn number(rule: &Value) -> u64 {
    rule.as_u64().expect("a limit is a whole number")
}

fn has_type(name: &Value, value: &Value) -> bool {
    match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    }
}

#[test]
fn wrong_value_and_unknown_keyword_are_found() {
    let root = serde_json::json!({"components": {"schemas": {"Id": {"type": "string", "minLength": 1}}}});
    let id = serde_json::json!({"$ref": "#/components/schemas/Id"});
    let schema = serde_json::json!({
        "type": "object", "required": ["id"], "additionalProperties": false,
        "properties": {
            "id": id, "next": {"oneOf": [id, {"type": "null"}]},
            "list": {"prefixItems": [{"type": "string"}], "items": {"enum": [1]}}
        }
    });
    let judged = |value: Value| check(&root, &schema, &value, "body");
    assert_eq!(judged(serde_json::json!({"id": "a", "next": null, "list": ["a", 1]})), Ok(()));
    for (wrong, why) in [
        (serde_json::json!([]), "type"),
        (serde_json::json!({}), "no id"),
        (serde_json::json!({"id": ""}), "minLength"),
        (serde_json::json!({"id": "a", "more": 1}), "body.more"),
        (serde_json::json!({"id": "a", "next": 1}), "oneOf"),
        (serde_json::json!({"id": "a", "list": ["a", 2]}), "list[1]"),
        (serde_json::json!({"id": "a", "list": [1]}), "list[0]"),
    ] {
        let error = judged(wrong).expect_err(why);
        assert!(error.contains(why), "{error}");
    }
    let strange = serde_json::json!({"dependentSchemas": {}});
    assert_eq!(
        check(&root, &strange, &Value::Null, "x"),
        Err("x: unknown keyword dependentSchemas".to_owned())
    );
}

#[test]
fn member_that_no_schema_names_is_found() {
    let root = serde_json::json!({"components": {"schemas": {
        "One": {"properties": {"id": {"type": "string"}}},
        "Free": {"type": "object"}
    }}});
    let schema = serde_json::json!({
        "allOf": [{"$ref": "#/components/schemas/One"}],
        "properties": {
            "free": {"$ref": "#/components/schemas/Free"},
            "list": {"items": {"$ref": "#/components/schemas/One"}},
            "map": {"additionalProperties": {"$ref": "#/components/schemas/One"}}
        }
    });
    let value = serde_json::json!({
        "id": "a", "more": 1, "free": {"x": 1}, "list": [{"id": "a"}, {"x": 1}], "map": {"k": {"id": "a", "y": 1}}
    });
    assert_eq!(unnamed(&root, &[&schema], &value, ""), [".list[].x", ".map.k.y", ".more"]);
}
