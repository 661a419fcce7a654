//! Tests of endpoints as they are defined and stored.

use serde_json::json;

use super::*;

fn form(more: Value) -> Result<EndpointForm, String> {
    let mut fields = json!({"url": "https://crm.example/tg", "types": ["tidegate.message.*"]});
    if let (Some(fields), Some(more)) = (fields.as_object_mut(), more.as_object()) {
        fields.extend(more.clone());
    }
    serde_json::from_value(fields).map_err(|error| error.to_string())
}

fn endpoint() -> StoredEndpoint {
    StoredEndpoint::new(form(json!({})).unwrap(), &[], 1_000)
}

#[test]
fn start_is_a_word_or_a_time() {
    for (from, start) in [
        (json!("now"), StartForm::Now),
        (json!("oldest"), StartForm::Oldest),
        (json!({"time": 5}), StartForm::At(5)),
    ] {
        let form = form(json!({ "from": from })).unwrap();
        assert_eq!(form.from, start);
        assert_eq!(serde_json::to_value(&form).unwrap()["from"], Value::from(start));
    }
    for wrong in [json!("start"), json!({"time": -1}), json!({"time": 1, "x": 2}), json!(3), json!(null)] {
        let error = form(json!({ "from": wrong })).unwrap_err();
        assert!(error.contains("from: \"now\", \"oldest\""), "{error}");
    }
}

#[test]
fn numbers_have_bounds() {
    assert_eq!(form(json!({})).unwrap().problems(), [""; 0]);
    for (fields, problem) in [
        (json!({"batch": {"max": 0}}), "batch.max"),
        (json!({"batch": {"max": 101}}), "batch.max"),
        (json!({"batch": {"waitMs": 10_001}}), "batch.waitMs"),
        (json!({"parallel": 33}), "parallel"),
        (json!({"timeoutMs": 60_001}), "timeoutMs"),
        (json!({"asideAfterMs": 59_999}), "asideAfterMs"),
        (json!({"users": vec!["u"; 65]}), "users"),
    ] {
        let problems = form(fields).unwrap().problems();
        assert!(problems.len() == 1 && problems[0].starts_with(problem), "{problems:?}");
    }
    assert!(form(json!({"pararell": 2})).unwrap_err().contains("unknown field"));
}

#[test]
fn stored_form_is_fixed_and_fields_of_newer_versions_are_ignored() {
    let text = r#"{"form":{"url":"https://crm.example/tg","types":["tidegate.*"],"batch":{"max":100,"waitMs":50},"parallel":4,"timeoutMs":15000,"asideAfterMs":86400000,"from":"now"},"secrets":[{"id":"s1","secret":"whsec_x","createdMs":1,"endsMs":9},{"id":"s2","secret":"whsec_y","createdMs":2}],"instance":7,"starts":{"0":12},"createdMs":1,"paused":true,"orders":[{"number":1,"do":{"replay":"oldest"}},{"number":2,"do":{"drop":["g:team",3]}},{"number":3,"do":"resume"}],"lastOrder":3}"#;
    let stored = StoredEndpoint::decode(text.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(stored.encode()).unwrap(), text);
    assert_eq!(stored.consumer("crm").unwrap().as_str(), "w.crm.00000007");
    assert_eq!(stored.orders[1].action.dropped(), Some((ConversationId::parse("g:team").unwrap(), 3)));
    let newer = text.replacen("\"url\"", "\"later\":1,\"url\"", 1).replacen(
        "\"paused\"",
        "\"other\":{},\"paused\"",
        1,
    );
    assert_eq!(StoredEndpoint::decode(newer.as_bytes()), Some(stored));
    assert_eq!(StoredEndpoint::decode(b"{}"), None);
}

#[test]
fn former_secret_signs_for_a_day_or_until_it_is_removed() {
    let mut it = endpoint();
    assert_eq!(it.remove_secret("s1"), Some(false), "it is the only one");
    let added = it.add_secret(None, 2_000).unwrap().clone();
    assert_eq!((added.id.as_str(), it.signing(2_000).len()), ("s2", 2));
    assert!(added.secret.starts_with("whsec_") && added.secret != it.secrets[0].secret);
    assert_eq!(it.add_secret(None, 3_000), None, "two are in force");
    assert_eq!(it.next_end(2_000), Some(2_000 + SECRET_OVERLAP_MS));
    assert_eq!(it.signing(2_000 + SECRET_OVERLAP_MS), [added.secret.as_str()]);
    assert_eq!(it.remove_secret("s2"), Some(false), "the former one ends");
    assert_eq!(it.remove_secret("s1"), Some(true));
    assert_eq!(it.remove_secret("s1"), None);
    let given = format!("whsec_{}", STANDARD.encode([1; 32]));
    assert_eq!(it.add_secret(Some(given.clone()), 4_000).unwrap().secret, given);
    assert!(!format!("{it:?}").contains("whsec_"), "{it:?}");
}

#[test]
fn orders_are_bounded_and_forgotten_once_carried_out() {
    let mut it = endpoint();
    let drop = |seq| StoredAction::Drop("g:team".to_owned(), seq);
    for number in 1..=ORDERS_MAX as u64 {
        assert!(it.order(drop(number), 0));
        assert_eq!(it.last_order, number);
    }
    assert!(!it.has_room(0) && !it.order(drop(99), 0));
    assert!(it.has_room(3) && it.order(StoredAction::Replay(StartForm::Oldest), 3));
    assert_eq!(it.orders.first().map(|it| it.number), Some(4));
    assert_eq!(it.orders.last().map(|it| it.number), Some(17));
}

#[test]
fn order_takes_the_place_of_one_that_it_makes_needless() {
    let mut it = endpoint();
    for action in [
        StoredAction::Resume,
        StoredAction::Replay(StartForm::At(5)),
        StoredAction::Resume,
        StoredAction::Replay(StartForm::Oldest),
    ] {
        assert!(it.order(action, 0));
    }
    let left: Vec<_> = it.orders.iter().map(|it| (it.number, it.action.clone())).collect();
    assert_eq!(left, [(3, StoredAction::Resume), (4, StoredAction::Replay(StartForm::Oldest))]);
}

#[test]
fn numbers_are_stored_for_a_start_from_now_and_few_partitions() {
    let positions = |count: u32| -> Vec<FeedPosition> {
        (0..count).map(|partition| FeedPosition { partition, newest: 9, ..FeedPosition::default() }).collect()
    };
    let of = |more, count| StoredEndpoint::new(form(more).unwrap(), &positions(count), 1).starts.len();
    assert_eq!(of(json!({}), 64), 64);
    assert_eq!(of(json!({}), 65), 0);
    assert_eq!(of(json!({"from": "oldest"}), 4), 0);
}

#[test]
fn notices_that_begin_again_have_cursors_of_their_own() {
    let waiting = || form(json!({"waiting": {}})).unwrap();
    let mut it = StoredEndpoint { instance: 7, ..StoredEndpoint::new(waiting(), &[], 1_000) };
    let name = |it: &StoredEndpoint| it.notice_consumer("crm").map(|it| it.as_str().to_owned());
    assert_eq!(name(&it).as_deref(), Some("n.crm.00000007"));
    it.replace_form(waiting(), 2_000);
    assert_eq!(name(&it).as_deref(), Some("n.crm.00000007"), "they went on");
    it.replace_form(form(json!({})).unwrap(), 3_000);
    assert_eq!(name(&it), None);
    it.replace_form(waiting(), 4_096);
    assert_eq!(name(&it).as_deref(), Some("n.crm.00000007-1000"));
    it.waiting_since_ms = Some(u64::MAX);
    assert!(it.notice_consumer(&"x".repeat(ENDPOINT_ID_BYTES_MAX)).is_some(), "the longest name is valid");
}
