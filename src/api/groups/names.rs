//! Names and metadata of groups: settings that only the admin API checks, and that the ledger carries unread.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{Extension, Json, extract::State, http::HeaderMap};
use serde::Deserialize;
use serde_json::Value;
use tidegate_protocol::{
    Code,
    id::{ConversationId, check_id},
    record::{MemberAction, MemberChange},
};

use super::{RequestContext, change, settings, with_storm_ended};
use crate::{
    api::{
        Api, Problem,
        access::Caller,
        conversations::{
            bad,
            turns::{in_turn_of_all, unavailable},
        },
        extract::{IdPath, JsonObject, named},
        into_seq, now_ms,
    },
    store::{ConversationHead, Store, StoreError},
};

/// Setting with the name of a group.
const NAME: &str = "name";

/// Beginning of the settings with metadata of a group.
const META: &str = "x.";

const NAME_BYTES_MAX: usize = 256;
const META_KEYS_MAX: usize = 32;
const META_VALUE_BYTES_MAX: usize = 1_024;

/// Settings of a group, apart from its name and metadata.
pub(super) struct Described<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) meta: BTreeMap<&'a str, &'a str>,
    pub(super) settings: BTreeMap<&'a str, &'a str>,
}

impl<'a> Described<'a> {
    /// Sorts the settings of a group by their kind.
    pub(super) fn of(settings: &'a BTreeMap<String, String>) -> Self {
        let mut all = Self { name: None, meta: BTreeMap::new(), settings: BTreeMap::new() };
        for (key, value) in settings {
            match key.strip_prefix(META) {
                Some(key) => drop(all.meta.insert(key, value)),
                None if key == NAME => all.name = Some(value),
                None => drop(all.settings.insert(key, value)),
            }
        }
        all
    }
}

/// Name and metadata that a request sets; an empty value removes one.
#[derive(Debug, Default)]
pub(super) struct Description<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) meta: BTreeMap<&'a str, &'a str>,
}

impl Description<'_> {
    /// Adds the description to the settings of a change.
    pub(super) fn add_to(&self, settings: &mut BTreeMap<String, String>) -> Result<(), Problem> {
        let refused = |why: String| Err(Problem(Code::BadSetting, why));
        if let Some(name) = self.name {
            if name.len() > NAME_BYTES_MAX {
                return refused(format!("name: at most {NAME_BYTES_MAX} bytes"));
            }
            settings.insert(NAME.to_owned(), name.to_owned());
        }
        if self.meta.len() > META_KEYS_MAX {
            return refused(format!("meta: at most {META_KEYS_MAX} keys in one request"));
        }
        for (key, value) in &self.meta {
            let setting = format!("{META}{key}");
            if key.is_empty() || check_id(&setting).is_err() {
                return refused("meta: each key must match [A-Za-z0-9_.-]{1,62}".to_owned());
            }
            if value.len() > META_VALUE_BYTES_MAX {
                return refused(format!("meta: {key}: at most {META_VALUE_BYTES_MAX} bytes"));
            }
            settings.insert(setting, (*value).to_owned());
        }
        Ok(())
    }
}

/// Change of the name, the metadata and the settings of a group; `null` removes what it names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct GroupPatch {
    #[serde(default, deserialize_with = "named")]
    name: Option<Option<String>>,
    #[serde(default)]
    meta: BTreeMap<String, Option<String>>,
    #[serde(default)]
    settings: BTreeMap<String, Option<String>>,
    by: Option<String>,
    request_id: Option<String>,
}

impl GroupPatch {
    /// Returns the settings of the change; an empty value removes one.
    fn settings(&self) -> Result<BTreeMap<String, String>, Problem> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let named = self.settings.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        let mut all = with_storm_ended(settings(&named)?);
        let meta = self.meta.iter().map(|(key, value)| (key.as_str(), value.as_deref().unwrap_or_default()));
        let name = self.name.as_ref().map(|name| name.as_deref().unwrap_or_default());
        Description { name, meta: meta.collect() }.add_to(&mut all)?;
        if all.is_empty() { Err(bad("name at least one of name, meta and settings")) } else { Ok(all) }
    }
}

/// Changes name, metadata and settings of a group, as one change.
pub(in crate::api) async fn patch(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
    headers: HeaderMap,
    JsonObject(body): JsonObject<GroupPatch>,
) -> Result<Json<Value>, Problem> {
    let settings = body.settings()?;
    let context = RequestContext::new(body.by.as_deref(), body.request_id.as_deref(), &headers)?;
    let change = change(&id, MemberAction::Settings, &[], &context)?;
    if settings.iter().any(|(key, value)| key.starts_with(META) && !value.is_empty()) {
        check_meta_keys(&api, &caller, &change.conversation, &settings).await?;
    }
    let change = MemberChange { settings, ..change };
    Ok(super::seq_response(&id, into_seq(api.admin.change(change, now_ms()).await)?))
}

/// Checks that the group has not too many keys of metadata after the change. Concurrent changes may exceed the limit, up to
/// that of all settings, which the ledger checks.
async fn check_meta_keys(
    api: &Api,
    caller: &Caller,
    group: &ConversationId,
    change: &BTreeMap<String, String>,
) -> Result<(), Problem> {
    let group = group.clone();
    let work =
        move |store: Arc<dyn Store>, _| async move { head_of(&*store, &group).await.map_err(unavailable) };
    // Of a group that is not there the ledger says so.
    let Some(found) = in_turn_of_all(api, caller, work).await? else { return Ok(()) };
    let is_meta = |key: &&String| key.starts_with(META);
    let mut keys: BTreeSet<&String> = found.head.settings.keys().filter(is_meta).collect();
    let before = keys.len();
    for (key, value) in change.iter().filter(|(key, _)| is_meta(key)) {
        if value.is_empty() {
            keys.remove(key)
        } else {
            keys.insert(key)
        };
    }
    if keys.len() > META_KEYS_MAX.max(before) {
        return Err(Problem(Code::BadSetting, format!("meta: a group has at most {META_KEYS_MAX} keys")));
    }
    Ok(())
}

/// Returns the head of a group that exists.
pub(super) async fn head_of(
    store: &dyn Store,
    group: &ConversationId,
) -> Result<Option<ConversationHead>, StoreError> {
    let found = store.heads_of(std::slice::from_ref(group)).await?;
    Ok(found.into_iter().flatten().next().filter(|it| it.head.deleted_seq == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings_of(text: &str) -> Result<BTreeMap<String, String>, Code> {
        serde_json::from_str::<GroupPatch>(text).unwrap().settings().map_err(|Problem(code, _)| code)
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn patch_sets_what_it_names_and_null_removes_it() {
        let set = r#"{"name":"Tea","meta":{"color":"red","old":null},"settings":{"history":"all"}}"#;
        let expected = map(&[("history", "all"), ("name", "Tea"), ("x.color", "red"), ("x.old", "")]);
        assert_eq!(settings_of(set), Ok(expected));
        assert_eq!(settings_of(r#"{"name":null}"#), Ok(map(&[("name", "")])));
        let post = settings_of(r#"{"settings":{"post":null}}"#);
        assert_eq!(post, Ok(map(&[("post", ""), ("storm.post", "")])), "the end of a storm undoes nothing");
        assert_eq!(settings_of("{}"), Err(Code::BadContent));
        assert_eq!(settings_of(r#"{"settings":{"name":"Tea"}}"#), Err(Code::BadSetting));
    }

    #[test]
    fn name_and_metadata_are_bounded() {
        let patch = |name: usize, keys: usize, key: &str, value: usize| {
            let meta: BTreeMap<String, String> =
                (0..keys).map(|n| (format!("{key}{n:02}"), "v".repeat(value))).collect();
            settings_of(&serde_json::json!({"name": "n".repeat(name), "meta": meta}).to_string()).map(drop)
        };
        assert_eq!(patch(256, 32, &"k".repeat(60), 1_024), Ok(()));
        for refused in [patch(257, 0, "k", 1), patch(1, 33, "k", 1), patch(1, 1, "k", 1_025)] {
            assert_eq!(refused, Err(Code::BadSetting));
        }
        for key in ["k".repeat(61), "a b".to_owned(), "é".to_owned()] {
            assert_eq!(patch(1, 1, &key, 1), Err(Code::BadSetting), "{key}");
        }
        assert_eq!(settings_of(r#"{"meta":{"":"v"}}"#), Err(Code::BadSetting));
    }

    #[test]
    fn settings_are_sorted_by_their_kind() {
        let all = map(&[("name", "Tea"), ("post", "all"), ("x.name", "x"), ("x.", "y")]);
        let Described { name, meta, settings } = Described::of(&all);
        assert_eq!((name, meta), (Some("Tea"), BTreeMap::from([("", "y"), ("name", "x")])));
        assert_eq!(settings, BTreeMap::from([("post", "all")]));
    }
}
