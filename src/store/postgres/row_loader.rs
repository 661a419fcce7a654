//! What owners lack in memory: rows by name, for many partitions in one turn to the server.
//!
//! Each message needs the key of its id looked up, and of 64 partitions each has few messages at a time: alone, the frame around that one
//! row was most of its cost.

use tidegate_protocol::machine::ledger::{Loaded, Need};
use uuid::Uuid;

use super::{
    codec::{Reader, bound, hash},
    error::{Trouble, damaged},
    owner::owned,
    session::{Call, Session, call},
};
use crate::store::{Fence, Snapshot, StoreError};

const STAND: &str = "
SELECT n.place, p.* FROM unnest($1::integer[]) WITH ORDINALITY AS n(partition, place)
CROSS JOIN LATERAL (
    SELECT fence, log_offset, last_hash FROM partitions p WHERE p.partition = n.partition LIMIT 1
) p";

const HEADS: &str = "
SELECT n.place, h.* FROM unnest($1::text[]) WITH ORDINALITY AS n(conversation, place)
CROSS JOIN LATERAL (
    SELECT last_seq, messages, pruned_to, deleted_seq, settings
    FROM heads h WHERE h.conversation = n.conversation LIMIT 1
) h";

const MEMBERS: &str = "
SELECT n.place, m.* FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n(conversation, user_id, place)
CROSS JOIN LATERAL (
    SELECT role, muted, joined_seq, left_seq, sent, joined_messages, left_messages, stays
    FROM members m WHERE m.conversation = n.conversation AND m.user_id = n.user_id LIMIT 1
) m";

const DEVICES: &str = "
SELECT n.place, d.* FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY
    AS n(conversation, user_id, device, place)
CROSS JOIN LATERAL (
    SELECT epoch, next_n FROM devices d
    WHERE d.conversation = n.conversation AND d.user_id = n.user_id AND d.device = n.device LIMIT 1
) d";

/// An id that was used again past the window has a key in each of two weeks: the newer counts.
const KEYS: &str = "
SELECT n.place, k.* FROM unnest($1::integer[], $2::uuid[]) WITH ORDINALITY AS n(partition, hash, place)
CROSS JOIN LATERAL (
    SELECT hash, body_hash, seq, time, log_offset, refused FROM keys k
    WHERE k.partition = n.partition AND k.hash = n.hash ORDER BY log_offset DESC LIMIT 1
) k";

/// Both in one statement, where nothing but keys is asked for, as for most messages: it is a snapshot by itself, for less than half of the work.
const STAND_AND_KEYS: &str = "
SELECT n.place, p.*, k.hash IS NOT NULL, k.* FROM unnest($1::integer[], $2::uuid[]) WITH ORDINALITY AS n(partition, hash, place)
CROSS JOIN LATERAL (
    SELECT fence, log_offset, last_hash FROM partitions p WHERE p.partition = n.partition LIMIT 1
) p
LEFT JOIN LATERAL (
    SELECT hash, body_hash, seq, time, log_offset, refused FROM keys k
    WHERE k.partition = n.partition AND k.hash = n.hash ORDER BY log_offset DESC LIMIT 1
) k ON true";

const ROWS: &str = "
SELECT n.place, m.* FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS n(conversation, seq, place)
CROSS JOIN LATERAL (
    SELECT sender, recalled_seq, recalled_time
    FROM messages m WHERE m.conversation = n.conversation AND m.seq = n.seq LIMIT 1
) m";

/// `fence, log_offset, last_hash`.
const STAND_COLUMNS: usize = 3;

/// What the owner of one partition lacks.
pub(super) struct Load {
    pub(super) partition: i32,
    pub(super) fence: Fence,
    pub(super) needs: Vec<Need>,
}

/// The rows as they were when the partition stood there; or it is not the owner's.
pub(super) type Answer = Result<Snapshot<Loaded>, StoreError>;

/// What is asked for, by kind, and where in the answer it goes.
#[derive(Default)]
struct Asked<'a> {
    heads: (Vec<usize>, Vec<&'a str>),
    members: (Vec<usize>, Vec<&'a str>, Vec<&'a str>),
    devices: (Vec<usize>, Vec<&'a str>, Vec<&'a str>, Vec<&'a str>),
    keys: (Vec<usize>, Vec<i32>, Vec<Uuid>),
    rows: (Vec<usize>, Vec<&'a str>, Vec<i64>),
}

impl<'a> Asked<'a> {
    fn new(loads: &'a [&Load]) -> Self {
        let mut asked = Self::default();
        let needs = loads.iter().flat_map(|load| load.needs.iter().map(|need| (load.partition, need)));
        for (place, (partition, need)) in needs.enumerate() {
            match need {
                Need::Head(id) => {
                    asked.heads.0.push(place);
                    asked.heads.1.push(id.as_str());
                }
                Need::Member(id, user) => {
                    asked.members.0.push(place);
                    asked.members.1.push(id.as_str());
                    asked.members.2.push(user.as_str());
                }
                Need::Device(id, user, device) => {
                    asked.devices.0.push(place);
                    asked.devices.1.push(id.as_str());
                    asked.devices.2.push(user.as_str());
                    asked.devices.3.push(device.as_str());
                }
                Need::Key(key) => {
                    asked.keys.0.push(place);
                    asked.keys.1.push(partition);
                    asked.keys.2.push(hash(key));
                }
                Need::Row(id, seq) => {
                    asked.rows.0.push(place);
                    asked.rows.1.push(id.as_str());
                    asked.rows.2.push(bound(*seq));
                }
            }
        }
        asked
    }

    /// Each asks for keys, and for nothing else.
    fn is_keys_alone(&self, loads: &[&Load]) -> bool {
        let Self { heads, members, devices, rows, .. } = self;
        let others = [&heads.0, &members.0, &devices.0, &rows.0];
        others.iter().all(|places| places.is_empty()) && loads.iter().all(|load| !load.needs.is_empty())
    }

    /// Only what is asked for, each with where its answers go.
    fn calls(&self) -> (Vec<Call<'_>>, Vec<&[usize]>) {
        let Self { heads, members, devices, keys, rows } = self;
        let all = [
            (&heads.0, call(HEADS, &[&heads.1])),
            (&members.0, call(MEMBERS, &[&members.1, &members.2])),
            (&devices.0, call(DEVICES, &[&devices.1, &devices.2, &devices.3])),
            (&keys.0, call(KEYS, &[&keys.1, &keys.2])),
            (&rows.0, call(ROWS, &[&rows.1, &rows.2])),
        ];
        all.into_iter().filter(|(places, _)| !places.is_empty()).map(|(places, it)| (it, &places[..])).unzip()
    }
}

/// For each, in order, in one snapshot.
pub(super) async fn load(session: &mut Session, loads: &[&Load]) -> Result<Vec<Answer>, Trouble> {
    let asked = Asked::new(loads);
    if asked.is_keys_alone(loads) {
        return keys(session, loads, &asked).await;
    }
    let partitions: Vec<i32> = loads.iter().map(|load| load.partition).collect();
    let (mut calls, places) = asked.calls();
    calls.insert(0, call(STAND, &[&partitions]));
    let mut answers = session.read(&calls).await?.into_iter();
    let stand = answers.next().unwrap_or_default();
    let mut stands: Vec<Option<Reader<'_>>> = loads.iter().map(|_| None).collect();
    for row in &stand {
        let mut reader = Reader::new(row);
        let place = reader.place()?;
        *stands.get_mut(place).ok_or_else(damaged)? = Some(reader);
    }
    let mut rows: Vec<Loaded> = loads.iter().flat_map(|load| &load.needs).map(absent).collect();
    for (found, places) in answers.zip(places) {
        for row in &found {
            let mut reader = Reader::new(row);
            let place = places.get(reader.place()?).and_then(|place| rows.get_mut(*place));
            put(place.ok_or_else(damaged)?, &mut reader)?;
        }
    }
    sort(loads, rows, stands)
}

/// The same, where everybody asks for keys and for nothing else.
async fn keys(session: &mut Session, loads: &[&Load], asked: &Asked<'_>) -> Result<Vec<Answer>, Trouble> {
    let (_, partitions, hashes) = &asked.keys;
    let found = session.read(&[call(STAND_AND_KEYS, &[partitions, hashes])]).await?;
    let mut stands: Vec<Option<Reader<'_>>> = loads.iter().map(|_| None).collect();
    let mut rows: Vec<Loaded> = loads.iter().flat_map(|load| &load.needs).map(absent).collect();
    let who: Vec<usize> =
        loads.iter().enumerate().flat_map(|(nth, load)| load.needs.iter().map(move |_| nth)).collect();
    for row in found.iter().flatten() {
        let mut reader = Reader::new(row);
        let place = reader.place()?;
        let (row, nth) = rows.get_mut(place).zip(who.get(place)).ok_or_else(damaged)?;
        stands[*nth] = Some(reader.clone());
        reader.skip(STAND_COLUMNS);
        if reader.get()? {
            put(row, &mut reader)?;
        }
    }
    sort(loads, rows, stands)
}

/// To each what is its own, if the partition still is.
fn sort(loads: &[&Load], rows: Vec<Loaded>, stands: Vec<Option<Reader<'_>>>) -> Result<Vec<Answer>, Trouble> {
    let mut rows = rows.into_iter();
    let mut all = Vec::with_capacity(loads.len());
    for (load, stands) in loads.iter().zip(stands) {
        let rows: Vec<Loaded> = rows.by_ref().take(load.needs.len()).collect();
        all.push(match owned(stands, load.fence) {
            Ok(position) => Ok(Snapshot { position, rows }),
            // It is nobody else's trouble.
            Err(Trouble::Store(error)) => Err(error),
            Err(trouble) => return Err(trouble),
        });
    }
    Ok(all)
}

fn absent(need: &Need) -> Loaded {
    match need.clone() {
        Need::Head(id) => Loaded::Head(id, None),
        Need::Member(id, user) => Loaded::Member(id, user, None),
        Need::Device(id, user, device) => Loaded::Device(id, user, device, None),
        Need::Key(key) => Loaded::Key(key, None),
        Need::Row(id, seq) => Loaded::Row(id, seq, None),
    }
}

fn put(place: &mut Loaded, reader: &mut Reader<'_>) -> Result<(), Trouble> {
    match place {
        Loaded::Head(_, it) => *it = Some(reader.head()?),
        Loaded::Member(_, _, it) => *it = Some(reader.member()?),
        Loaded::Device(_, _, _, it) => *it = Some(reader.device()?),
        Loaded::Key(_, it) => *it = Some(reader.key()?.1),
        Loaded::Row(_, _, it) => *it = Some(reader.row_head()?),
    }
    Ok(())
}
