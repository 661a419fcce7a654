//! Endpoints of webhooks and their cursors by meaning: the fields of an endpoint, and the position of each cursor.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidegate::{
    store::{FeedStore as _, GuardKind, GuardStore as _, PostgresStore},
    webhooks::{
        BatchForm, EndpointForm, EndpointProgress, StartForm, StoredEndpoint, WaitingForm, WaitingPreview,
        WaitingUnless,
    },
};
use tidegate_protocol::machine::webhook::WebhookCursor;

use crate::{
    edits::{call, forms},
    support::{Process, WAIT_MAX, WebhookReceiver, becomes},
};

/// Endpoint in a store, with its cursors by partition.
pub(crate) struct ReadEndpoint {
    stored: StoredEndpoint,
    cursors: BTreeMap<u32, WebhookCursor>,
    /// Bytes of the cursors of its notices.
    notices: BTreeMap<u32, Vec<u8>>,
}

/// Reads all endpoints, by id.
pub(crate) async fn read(store: &PostgresStore) -> BTreeMap<String, ReadEndpoint> {
    let mut all = BTreeMap::new();
    for row in store.guard_since(0, 100).await.expect("rows").rows {
        if row.key.kind() != GuardKind::Webhook {
            continue;
        }
        let id = row.key.name().to_owned();
        let bytes = row.value.expect("no endpoint was removed");
        let stored = StoredEndpoint::decode(&bytes).expect("an endpoint");
        let mut endpoint = ReadEndpoint { stored, cursors: BTreeMap::new(), notices: BTreeMap::new() };
        let consumer = endpoint.stored.consumer(&id).expect("a name");
        for it in store.cursors(&consumer).await.expect("cursors") {
            let cursor = WebhookCursor::decode(it.bytes()).expect("a cursor");
            endpoint.cursors.insert(it.partition(), cursor);
        }
        if let Some(consumer) = endpoint.stored.notice_consumer(&id) {
            for it in store.cursors(&consumer).await.expect("cursors") {
                endpoint.notices.insert(it.partition(), it.bytes().to_vec());
            }
        }
        all.insert(id, endpoint);
    }
    all
}

/// Describes the cursors of all endpoints.
pub(crate) fn cursors(all: &BTreeMap<String, ReadEndpoint>) -> Value {
    let position = |(partition, it): (&u32, &WebhookCursor)| {
        let apart = json!({"parked": it.parked.len(), "aside": it.aside.len()});
        json!({
            "partition": partition, "lanes": it.lanes, "lastOrder": it.last_order, "disabled": it.is_disabled,
            "apart": apart,
        })
    };
    let of = |it: &ReadEndpoint| it.cursors.iter().map(position).collect::<Value>();
    json!(all.iter().map(|(id, it)| (id.clone(), of(it))).collect::<BTreeMap<String, Value>>())
}

/// Returns the definitions that [`forms`] means, field by field.
fn definitions() -> [(&'static str, EndpointForm); 2] {
    let texts = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect::<Vec<String>>();
    let crm = EndpointForm {
        url: "https://crm.internal/tg".to_owned(),
        types: texts(&["tidegate.message.*", "tidegate.member.joined"]),
        conversations: texts(&["g:*"]),
        users: texts(&["ann"]),
        content: false,
        batch: BatchForm { max: 7, wait_ms: 5 },
        parallel: 2,
        timeout_ms: 15_000,
        aside_after_ms: 86_400_000,
        headers: Some(BTreeMap::from([("x-app".to_owned(), "crm".to_owned())])),
        from: StartForm::Oldest,
        waiting: None,
    };
    let waiting = WaitingForm {
        delay_ms: 1_500,
        repeat_ms: 30_000,
        unless: WaitingUnless::Acked,
        preview: WaitingPreview::Content,
        badge: true,
    };
    let push = EndpointForm {
        types: texts(&["tidegate.webhook.test"]),
        conversations: Vec::new(),
        users: Vec::new(),
        content: true,
        batch: BatchForm { max: 100, wait_ms: 50 },
        parallel: 4,
        headers: None,
        from: StartForm::Now,
        waiting: Some(waiting),
        ..crm.clone()
    };
    [("crm", crm), ("push", push)]
}

/// Checks the endpoints that a version left: the first one has taken nothing, and the second one starts behind all events.
/// These have the numbers up to `newest` in one partition.
pub(crate) async fn check(store: &PostgresStore, partition: u32, newest: u64) {
    let all = read(store).await;
    assert_eq!(all.len(), definitions().len());
    for (id, form) in definitions() {
        let ReadEndpoint { stored, cursors, notices } = &all[id];
        assert!(stored.form == form, "{id}: {}", json!(stored.form));
        let [secret] = &stored.secrets[..] else { panic!("{id} has one secret") };
        assert!(secret.id == "s1" && secret.secret.starts_with("whsec_") && secret.ends_ms.is_none(), "{id}");
        assert!(secret.created_ms == stored.created_ms && stored.created_ms > 0, "{id}");
        let is_from_now = form.from == StartForm::Now;
        assert_eq!(stored.starts.get(&partition), is_from_now.then_some(&newest), "{id}");
        assert!(stored.paused && stored.waiting_since_ms.is_none(), "{id}");
        assert!(stored.orders.is_empty() && stored.last_order == 0, "{id}");

        assert!(cursors.contains_key(&partition), "{id} has a cursor of the partition");
        for (nth, cursor) in cursors {
            let at = if is_from_now && *nth == partition { newest } else { 0 };
            assert_eq!((cursor.lowest(), cursor.lanes.len()), (at, form.parallel), "{id}, partition {nth}");
            let rest = WebhookCursor { lanes: cursor.lanes.clone(), ..WebhookCursor::at(0, 1) };
            assert_eq!(*cursor, rest, "{id}, partition {nth}: no order, and nothing parked or set aside");
        }
        // Without the start, only the cursor has the position.
        let unstarted = StoredEndpoint { starts: BTreeMap::new(), ..stored.clone() };
        let progress = EndpointProgress::read(store, id, &unstarted).await.expect("progress");
        assert_eq!(progress.behind, if is_from_now { 0 } else { newest }, "{id}");
        // The version of the layout and the number: `waiting::cursor` checks what the bytes mean.
        let bytes = form.waiting.map(|_| vec![1, u8::try_from(newest).expect("one byte")]);
        assert_eq!(notices.get(&partition), bytes.as_ref(), "{id}");
    }
}

/// Replaces the definition of an endpoint that is paused, and lets it go on.
fn resume(node: &Process, id: &str, form: &Value) {
    call(node, "PUT", &format!("/v1/webhooks/{id}"), form);
    call(node, "POST", &format!("/v1/webhooks/{id}/resume"), &json!({}));
}

fn delivers(receiver: &WebhookReceiver, what: &str, ids: &[&str]) {
    becomes(WAIT_MAX, what, || receiver.ids(), |found| found == ids);
}

/// Checks that the endpoints of a node that another version left go on where their cursors are. The receivers are others.
pub(crate) fn go_on(node: &Process) {
    let (first, second) = (WebhookReceiver::start(), WebhookReceiver::start());
    let [(id, form), _] = forms(&first.url());
    resume(node, id, &form);
    // By ann, or edits of her messages.
    let wanted = ["g:tea/2", "g:tea/4", "g:tea/6", "g:tea/7", "g:tea/9"];
    delivers(&first, "what was not taken is delivered", &wanted[..4]);
    assert_eq!(first.header("x-app").as_deref(), Some("crm"));
    resume(node, "push", &json!({"url": second.url(), "types": ["tidegate.message.accepted"]}));
    call(node, "POST", "/v1/messages", &json!({"from": "ann", "to": "g:tea", "content": {"text": "later"}}));
    delivers(&second, "what is accepted behind the cursor is delivered, and nothing before it", &wanted[4..]);
    delivers(&first, "each event is delivered once", &wanted);
}
