//! Patterns of cases: what a frame or an event must look like, and the values that later steps take from it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Values that patterns have bound, by name.
pub(super) type Bindings = BTreeMap<String, Value>;

/// Matches a value, and binds the names that are new. Nothing is bound when it does not match.
pub(super) fn bind(pattern: &Value, value: &Value, bindings: &mut Bindings) -> Result<(), String> {
    let mut trial = bindings.clone();
    compare(pattern, Some(value), &mut trial, "")?;
    *bindings = trial;
    Ok(())
}

/// Returns the template with the values of its `$name`s.
pub(super) fn fill(template: &Value, bindings: &Bindings) -> Result<Value, String> {
    Ok(match template {
        Value::String(text) => match text.strip_prefix('$') {
            Some(name) => bindings.get(name).cloned().ok_or_else(|| format!("${name} is not bound"))?,
            None => template.clone(),
        },
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| fill(item, bindings)).collect::<Result<_, _>>()?)
        }
        Value::Object(map) => {
            let fields = map.iter().map(|(key, item)| Ok((key.clone(), fill(item, bindings)?)));
            Value::Object(fields.collect::<Result<Map<_, _>, String>>()?)
        }
        other => other.clone(),
    })
}

fn compare(
    pattern: &Value,
    value: Option<&Value>,
    bindings: &mut Bindings,
    path: &str,
) -> Result<(), String> {
    let shown = || value.map_or_else(|| "nothing".to_owned(), Value::to_string);
    let refuse = |what: String| Err(format!("{path}: expected {what}, got {}", shown()));
    if let Some((operator, operand)) = operator(pattern) {
        return apply(operator, operand, value, bindings, path);
    }
    let Some(value) = value else {
        return if pattern.is_null() { Ok(()) } else { refuse(pattern.to_string()) };
    };
    match pattern {
        Value::String(text) if text == "*" => Ok(()),
        Value::String(text) if text.starts_with('$') => {
            let name = &text[1..];
            match bindings.get(name) {
                Some(bound) if bound == value => Ok(()),
                Some(bound) => refuse(format!("${name} = {bound}")),
                None => {
                    bindings.insert(name.to_owned(), value.clone());
                    Ok(())
                }
            }
        }
        Value::Object(fields) => {
            let Value::Object(found) = value else { return refuse(pattern.to_string()) };
            for (key, pattern) in fields {
                compare(pattern, found.get(key), bindings, &format!("{path}.{key}"))?;
            }
            Ok(())
        }
        Value::Array(items) => match value {
            Value::Array(found) if found.len() == items.len() => {
                let pairs = items.iter().zip(found).enumerate();
                for (at, (item, found)) in pairs {
                    compare(item, Some(found), bindings, &format!("{path}[{at}]"))?;
                }
                Ok(())
            }
            _ => refuse(pattern.to_string()),
        },
        _ if pattern == value => Ok(()),
        Value::Null => refuse("nothing".to_owned()),
        _ => refuse(pattern.to_string()),
    }
}

/// Returns the operator of a pattern such as `{"$ge": 2}`.
fn operator(pattern: &Value) -> Option<(&str, &Value)> {
    let fields = pattern.as_object()?;
    let (key, operand) = fields.iter().next()?;
    (fields.len() == 1 && key.starts_with('$')).then_some((key.as_str(), operand))
}

fn apply(
    operator: &str,
    operand: &Value,
    value: Option<&Value>,
    bindings: &mut Bindings,
    path: &str,
) -> Result<(), String> {
    let operand = if operator == "$or" { operand.clone() } else { bound(operand, bindings)? };
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let items = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let holds = match operator {
        "$ge" => value.is_some_and(|value| number(value) >= number(&operand)),
        "$le" => value.map_or(0, number) <= number(&operand),
        "$not" => compare(&operand, value, &mut bindings.clone(), path).is_err(),
        "$has" => {
            let found = items(value);
            let is_there = |wanted: &Value| {
                found.iter().any(|item| compare(wanted, Some(item), &mut bindings.clone(), path).is_ok())
            };
            items(Some(&operand)).iter().all(is_there)
        }
        "$or" => items(Some(&operand)).iter().any(|option| {
            let mut trial = bindings.clone();
            let matches = compare(option, value, &mut trial, path).is_ok();
            if matches {
                *bindings = trial;
            }
            matches
        }),
        other => return Err(format!("{path}: unknown operator {other}")),
    };
    let shown = value.map_or_else(|| "nothing".to_owned(), Value::to_string);
    if holds { Ok(()) } else { Err(format!("{path}: expected {operator} {operand}, got {shown}")) }
}

/// Returns the operand with the values that are bound; unbound names stay, and match anything.
fn bound(operand: &Value, bindings: &Bindings) -> Result<Value, String> {
    match operand {
        Value::String(text) if text.starts_with('$') => fill(operand, bindings),
        _ => Ok(operand.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(pattern: &Value, value: &Value) -> bool {
        bind(pattern, value, &mut Bindings::new()).is_ok()
    }

    #[test]
    fn names_are_bound_once_and_compared_later() {
        let mut bindings = Bindings::new();
        bind(&json!({"send": {"msgId": "$m"}}), &json!({"id": 2, "send": {"msgId": "x"}}), &mut bindings)
            .expect("the frame has the field");
        assert!(bind(&json!({"msgId": "$m"}), &json!({"msgId": "y"}), &mut bindings).is_err());
        assert_eq!(
            fill(&json!({"sendAck": {"msgId": "$m"}}), &bindings),
            Ok(json!({"sendAck": {"msgId": "x"}}))
        );
        assert!(fill(&json!("$other"), &bindings).is_err());
    }

    #[test]
    fn null_is_absent_and_a_star_is_present() {
        assert!(matches(&json!({"attempt": null, "seq": "*"}), &json!({"seq": 1})));
        assert!(!matches(&json!({"attempt": null}), &json!({"attempt": 1})));
        assert!(!matches(&json!({"seq": "*"}), &json!({})));
    }

    #[test]
    fn operators_compare() {
        assert!(matches(&json!({"seq": {"$ge": 2}}), &json!({"seq": 2})));
        assert!(!matches(&json!({"seq": {"$ge": 2}}), &json!({"seq": 1})));
        assert!(matches(&json!({"a": {"$le": 0}}), &json!({})));
        assert!(matches(&json!({"a": {"$not": 1}}), &json!({"a": 2})));
        assert!(matches(&json!({"a": {"$has": [{"x": 1}]}}), &json!({"a": [{"x": 2}, {"x": 1, "y": 3}]})));
        assert!(!matches(&json!({"a": {"$has": [1]}}), &json!({"a": [2]})));
        assert!(matches(&json!({"a": {"$or": [1, null]}}), &json!({})));
    }
}
