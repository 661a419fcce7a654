//! Check of the guard's entries: their indexes and numbers agree with the rows.

use std::collections::{BTreeMap, BTreeSet};

use fjall::Readable as _;

use super::{DatabaseError, Offline, StateKey, text_of};
use crate::embedded::codec;

/// Keys of the keyspace `state`.
type Keys = BTreeSet<Vec<u8>>;

/// Reports indexes of entries that are missing or left over, and wrong numbers of entries.
pub(super) fn check(store: &Offline, fault: &mut dyn FnMut(String)) {
    if let Err(error) = compare(store, fault) {
        fault(format!("the entries of the guard: {}", text_of(error)));
    }
}

fn compare(store: &Offline, fault: &mut dyn FnMut(String)) -> Result<(), DatabaseError> {
    let (view, state) = (&store.view, &store.database.state);
    let (mut counts, mut versions, mut ends) = (BTreeMap::<u8, u64>::new(), BTreeMap::new(), Keys::new());
    for entry in view.prefix(state, codec::GUARD_PREFIX) {
        let (key, value) = entry.into_inner()?;
        let ((kind, name), row) = (codec::guard_name(&key)?, codec::guard_value(&value)?);
        *counts.entry(kind).or_default() += 1;
        ends.extend(row.until_ms.map(|until| codec::guard_end_key(kind, until, name)));
        versions.insert(row.version, key.to_vec());
    }
    let newest = view.get(state, codec::GUARD_VERSION)?.map(|value| codec::number(&value)).transpose()?;
    if versions.keys().next_back().copied() > newest {
        fault("an entry of the guard has a version above the newest one".to_owned());
    }
    let mut indexed = BTreeMap::new();
    for entry in view.prefix(state, codec::GUARD_VERSION) {
        let (key, value) = entry.into_inner()?;
        if let StateKey::GuardAt(version) = StateKey::of(&key)? {
            indexed.insert(version, value.to_vec());
        }
    }
    let indexed_ends = view.prefix(state, codec::GUARD_END_PREFIX).map(|it| Ok(it.key()?.to_vec()));
    if indexed != versions || indexed_ends.collect::<Result<Keys, DatabaseError>>()? != ends {
        fault("an index of the guard's entries does not agree with them".to_owned());
    }
    for entry in view.prefix(state, codec::GUARD_COUNT_PREFIX) {
        let (key, value) = entry.into_inner()?;
        let StateKey::GuardCount(kind) = StateKey::of(&key)? else { return Err(codec::damaged()) };
        let (stored, found) = (codec::number(&value)?, counts.remove(&kind).unwrap_or(0));
        if stored != found {
            fault(format!("the guard has {found} entries of kind {kind}, {stored} are counted"));
        }
    }
    for (kind, found) in counts {
        fault(format!("the guard has {found} entries of kind {kind} that are not counted"));
    }
    Ok(())
}
