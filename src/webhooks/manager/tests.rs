//! Tests of the endpoints that a node has in force.

use serde_json::{Value, json};

use super::*;
use crate::{
    bus::TopicId,
    store::{FeedCursor, Fence, GuardKey, MemoryStore},
};

const URL: &str = "https://crm.internal/tg";

fn webhooks(policy: WebhookPolicy) -> Arc<Webhooks> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    Arc::new(Webhooks::new(policy, store, Arc::default(), crate::metrics::install().0))
}

fn stored(more: &Value) -> StoredEndpoint {
    let mut form = json!({"url": URL, "types": ["tidegate.*"]});
    if let (Some(form), Some(more)) = (form.as_object_mut(), more.as_object()) {
        form.extend(more.clone());
    }
    StoredEndpoint::new(serde_json::from_value(form).unwrap(), &[], 1_000)
}

fn row(id: &str, stored: Option<&StoredEndpoint>, version: u64) -> GuardRow {
    let key = GuardKey::new(GuardKind::Webhook, id).unwrap();
    GuardRow { version, key, value: stored.map(|it| it.encode().into()), until_ms: None }
}

fn ids(webhooks: &Webhooks) -> Vec<String> {
    webhooks.endpoints().into_iter().map(|(id, _)| id).collect()
}

#[tokio::test]
async fn definition_is_judged_by_the_settings_of_the_node() {
    let content_hosts = vec!["crm.internal".to_owned()];
    let strict = webhooks(WebhookPolicy { content_hosts, ..WebhookPolicy::default() });
    let open = webhooks(WebhookPolicy { allows_plain: true, ..WebhookPolicy::default() });
    let plain = stored(&json!({"url": "http://10.0.0.7/"}));
    let with_content = stored(&json!({"content": true}));
    assert!(strict.plan_of("crm", &plain, 0).unwrap_err().contains("webhooks.allow_plain"));
    assert!(open.plan_of("crm", &plain, 0).is_ok());
    assert!(strict.plan_of("crm", &with_content, 0).is_ok());
    assert!(open.plan_of("crm", &with_content, 0).unwrap_err().contains("webhooks.content_hosts"));
    strict.changed(&[row("crm", Some(&plain), 1)], 0);
    let view = strict.endpoint("crm").unwrap();
    assert!(view.status.unwrap_err().contains("allow_plain"), "it is shown, and not delivered");
    assert!(strict.plan("crm").is_none());
}

#[test]
fn fault_of_tests_replaces_the_time_of_an_endpoint_after_which_events_are_set_aside() {
    let endpoint = stored(&json!({"asideAfterMs": 60_000}));
    for (fault, expected) in [(None, 60_000), (Some(5), 5)] {
        let policy = WebhookPolicy { aside_after_ms: fault, ..WebhookPolicy::default() };
        let plan = webhooks(policy).plan_of("crm", &endpoint, 0).unwrap();
        assert_eq!(plan.delivery.aside_after, Duration::from_millis(expected));
    }
}

#[tokio::test]
async fn endpoints_follow_the_store() {
    let webhooks = webhooks(WebhookPolicy::default());
    let (one, two) = (stored(&json!({})), stored(&json!({})));
    webhooks.restarted();
    webhooks.changed(&[row("one", Some(&one), 1), row("two", Some(&two), 2)], 0);
    webhooks.caught_up();
    assert_eq!(ids(&webhooks), ["one", "two"]);
    let before = webhooks.plan("one").unwrap();
    let paused = StoredEndpoint { paused: true, ..one.clone() };
    webhooks.changed(&[row("one", Some(&paused), 3)], 0);
    let after = webhooks.plan("one").unwrap();
    assert!(!before.is_paused && after.is_paused && before.consumer == after.consumer);
    let again = stored(&json!({}));
    webhooks.changed(&[row("one", Some(&again), 4)], 0);
    assert_ne!(webhooks.plan("one").unwrap().consumer, after.consumer, "it is another endpoint of that id");
    webhooks.changed(&[row("two", None, 5)], 0);
    assert_eq!(ids(&webhooks), ["one"]);
    // A read of all entries without it: its removal was not seen.
    webhooks.restarted();
    webhooks.changed(&[row("two", Some(&two), 6)], 0);
    webhooks.caught_up();
    assert_eq!(ids(&webhooks), ["two"]);
    let newer = GuardRow { value: Some(b"{}"[..].into()), ..row("two", None, 7) };
    webhooks.changed(&[newer], 0);
    assert_eq!(ids(&webhooks), [""; 0], "an older node does not deliver what it can't read");
}

#[tokio::test]
async fn former_secret_ends_by_the_clock_of_the_store() {
    let webhooks = webhooks(WebhookPolicy::default());
    let mut endpoint = stored(&json!({}));
    endpoint.add_secret(None, 2_000);
    let end = endpoint.next_end(2_000).unwrap();
    webhooks.changed(&[row("crm", Some(&endpoint), 1)], 2_000);
    let before = webhooks.plan("crm").unwrap();
    webhooks.time_passed(end - 1);
    assert!(Arc::ptr_eq(&before, &webhooks.plan("crm").unwrap()));
    webhooks.time_passed(end);
    let after = webhooks.plan("crm").unwrap();
    assert!(!Arc::ptr_eq(&before, &after));
    webhooks.time_passed(end + 1);
    assert!(Arc::ptr_eq(&after, &webhooks.plan("crm").unwrap()));
}

#[tokio::test]
async fn authorities_are_read_once_and_at_a_reload() {
    let ca_file = std::env::temp_dir().join(format!("tidegate-webhook-ca-{}", std::process::id()));
    let authority = rcgen::generate_simple_self_signed(["ca.example".to_owned()]).unwrap().cert.pem();
    std::fs::write(&ca_file, authority).unwrap();
    let webhooks = webhooks(WebhookPolicy { ca_file: ca_file.clone(), ..WebhookPolicy::default() });
    let endpoint = stored(&json!({}));
    webhooks.changed(&[row("crm", Some(&endpoint), 1)], 0);
    std::fs::write(&ca_file, "no certificate").unwrap();
    assert!(webhooks.plan_of("crm", &endpoint, 0).is_ok(), "the file is not read again");
    let former = webhooks.plan("crm").unwrap();
    webhooks.time_passed(1);
    assert!(Arc::ptr_eq(&former, &webhooks.plan("crm").unwrap()), "nothing has changed");
    webhooks.set_trust(trust());
    webhooks.time_passed(2);
    assert!(!Arc::ptr_eq(&former, &webhooks.plan("crm").unwrap()));
    std::fs::remove_file(ca_file).unwrap();
}

/// Returns the authorities of the system.
fn trust() -> ServerTrust {
    ServerTrust::read(std::path::Path::new("")).unwrap()
}

#[tokio::test]
async fn plan_that_is_built_while_authorities_are_replaced_is_built_again() {
    let webhooks = webhooks(WebhookPolicy::default());
    let endpoint = stored(&json!({}));
    let present = webhooks.present("crm", endpoint, 1, 0);
    webhooks.set_trust(trust());
    webhooks.start(&mut webhooks.state.lock(), "crm", present);
    let former = webhooks.plan("crm").unwrap();
    webhooks.time_passed(1);
    let plan = webhooks.plan("crm").unwrap();
    assert!(!Arc::ptr_eq(&former, &plan), "it has the former authorities");
    webhooks.time_passed(2);
    assert!(Arc::ptr_eq(&plan, &webhooks.plan("crm").unwrap()));
}

#[tokio::test]
async fn cursors_of_removed_endpoints_are_swept_once_they_are_unknown_twice() {
    let webhooks = webhooks(WebhookPolicy::default());
    let (kept, removed) = (stored(&json!({})), stored(&json!({})));
    webhooks.store.take_over(0, Fence(1), TopicId(1)).await.unwrap();
    let names = [kept.consumer("kept").unwrap(), removed.consumer("removed").unwrap()];
    for name in names.iter().cloned().chain([ConsumerName::new("other").unwrap()]) {
        let cursor = FeedCursor::new(name, 0, b"x"[..].into()).unwrap();
        webhooks.store.save_cursor(Fence(1), &cursor).await.unwrap();
    }
    webhooks.changed(&[row("kept", Some(&kept), 1)], 0);
    let sweep = async |suspected| webhooks.sweep_once(&suspected).await.unwrap();
    assert!(sweep(BTreeSet::new()).await.is_empty(), "the store is not read yet, and nothing is owned");
    webhooks.caught_up();
    webhooks.owned.set(0, true);
    let suspected = sweep(BTreeSet::new()).await;
    assert_eq!(suspected, BTreeSet::from([names[1].clone()]));
    assert_eq!(webhooks.store.consumers().await.unwrap().len(), 3, "another node may know it");
    assert!(sweep(suspected).await.is_empty());
    let left = webhooks.store.consumers().await.unwrap();
    assert_eq!(left, [ConsumerName::new("other").unwrap(), names[0].clone()]);
}
