//! Volatile frames: written at the end of a turn to whoever has nothing else waiting, and dropped for everybody else.
//!
//! They never enter an outbox, so they neither delay a message nor take its room; the few that wait for the end of a turn
//! are bounded in number, and so are the members that a turn serves.

use std::{collections::HashSet, io, sync::Arc, time::Duration};

use tidegate_protocol::{
    Code, Time,
    codec::PushFrame,
    id::{ConversationId, ConversationKind, UserId},
    pb::{self, server_frame::Body as Said},
};

use super::{
    Shard,
    conn::{Conn, DIRTY, LIVE, WAITING},
};
use crate::{
    conversation::group_size,
    directory::ShardSet,
    inline,
    mail::{Audience, ConnKey, Mail, Size, Volatile},
    net::transfer,
};

/// Signals that may wait for the end of a turn.
const WAITING_MAX: usize = 256;

/// Members served in one turn.
const BUDGET: usize = 1_024;

/// For how long the size of a group is believed.
const SIZE_FRESH: Duration = Duration::from_secs(10);

/// The same where the members come with it: a removal that this node did not hear of ends here.
const MEMBERS_FRESH: Duration = Duration::from_secs(2);

/// What is said to who signals to a large group.
const TOO_LARGE: (Code, &str) = (Code::Forbidden, "signals go to small groups only");

impl Shard {
    /// Checks whether the connection may, and passes the signal on.
    pub(super) fn signal(
        &mut self,
        conn: &mut Conn,
        id: u64,
        conversation: ConversationId,
        signal: pb::Signal,
    ) {
        let audience = match conversation.kind() {
            ConversationKind::Direct(a, b) => {
                let both = [a, b].into_iter().take(if a == b { 1 } else { 2 });
                Audience::Users(both.filter_map(|id| UserId::new(id).ok()).collect())
            }
            ConversationKind::Group(_) | ConversationKind::Room(_) => Audience::Members,
        };
        let frame = Arc::new(PushFrame::new(&pb::ServerFrame { id: 0, body: Some(Said::Signal(signal)) }));
        let mut volatile = Volatile { conversation, audience, only: None, frame, origin: Some(conn.key) };
        if matches!(volatile.audience, Audience::Users(_)) {
            self.signalled(conn, id, Ok(()));
            return self.spread_signal(volatile);
        }
        let is_in = self.hub.is_in(&volatile.conversation, conn.key.slot);
        let has_gone = self.hub.has_parted(&volatile.conversation, conn.key.slot);
        if !is_in && (has_gone || self.context.beside.is_none()) {
            return self.signalled(conn, id, Err((Code::NotAMember, "")));
        }
        let fresh = if self.context.beside.is_some() { MEMBERS_FRESH } else { SIZE_FRESH };
        let since = self.now.as_millis().checked_sub(fresh.as_millis() as u64).map(Time::from_millis);
        // Who is not in the index and did not go may have come in without this node hearing of it: the store says.
        match self.hub.size(&volatile.conversation, since.unwrap_or_default()).filter(|_| is_in).cloned() {
            Some(size) => {
                let outcome = allowed(conn, &size);
                self.signalled(conn, id, outcome);
                if outcome.is_ok() {
                    volatile.only = size.members;
                    self.spread_signal(volatile);
                }
            }
            None => self.ask_size(conn.key, id, volatile),
        }
    }

    fn signalled(&mut self, conn: &mut Conn, id: u64, outcome: Result<(), (Code, &str)>) {
        conn.session.signalled(id, outcome, &self.context.limits, &mut self.scratch.actions);
    }

    /// Looks up how large the group is; the signal waits for that as mail.
    fn ask_size(&mut self, key: ConnKey, id: u64, volatile: Volatile) {
        let (store, max) = (Arc::clone(&self.context.ports.store), self.context.small_group_max);
        let (conversation, exact) = (volatile.conversation.clone(), self.context.beside.is_none());
        let work = async move {
            let found = match exact {
                true => group_size::of(&*store, &conversation, max).await,
                false => group_size::with_members(&*store, &conversation, max).await,
            };
            found.map_err(|code| (code, ""))
        };
        let (home, waiting) = (self.context.own_handle(), volatile.clone());
        let sized = inline::run(&self.context.runtime, work, move |sized| {
            Box::pin(async move {
                if let Some(home) = home {
                    // The shard is gone only when the node stops.
                    home.post(Mail::Sized(key, id, waiting, sized)).await.ok();
                }
            })
        });
        if let Some(sized) = sized {
            self.own.push(Mail::Sized(key, id, volatile, sized));
        }
    }

    /// The size of the group is known: the client has its answer, the others the signal.
    pub(super) fn on_sized(
        &mut self,
        key: ConnKey,
        id: u64,
        mut volatile: Volatile,
        sized: Result<Size, (Code, &'static str)>,
    ) {
        if let Ok(size) = &sized {
            self.hub.note_size(&volatile.conversation, size.clone(), self.now);
        }
        let Some(slot) = self.conns.find(key) else { return };
        let is_in = self.hub.is_in(&volatile.conversation, slot);
        // Who was removed since it asked, or before the store heard of it, stays outside.
        let may_be_in = self.context.beside.is_some() && !self.hub.has_parted(&volatile.conversation, slot);
        let mut outcome = Err((Code::NotAMember, ""));
        self.with_conn(slot, |shard, conn| {
            if is_in || may_be_in {
                outcome = match &sized {
                    Ok(size) if is_in || size.small => allowed(conn, size),
                    // Of a large one nobody is named.
                    Ok(_) => Err((Code::NotAMember, "")),
                    Err(refusal) => Err(*refusal),
                };
            }
            if outcome.is_ok() {
                // The news of it was lost on the way here: from now on it hears the signals of others, too.
                shard.hub.join(&volatile.conversation, slot);
            }
            shard.signalled(conn, id, outcome);
            shard.act(conn);
            shard.flush(conn);
        });
        if let (Ok(()), Ok(size)) = (outcome, sized) {
            volatile.only = size.members;
            self.spread_signal(volatile);
        }
    }

    /// To the other nodes, and to all shards that have somebody; one whose mailbox is full does without.
    fn spread_signal(&mut self, volatile: Volatile) {
        if let Some(beside) = &self.context.beside {
            match (&volatile.audience, &volatile.only) {
                (Audience::Users(users), _) => {
                    beside.signal_to_users(&volatile.conversation, users, &volatile.frame);
                }
                (_, Some(members)) => {
                    beside.signal_to_group(&volatile.conversation, members.iter().cloned(), &volatile.frame);
                }
                _ => {}
            }
        }
        let directory = &self.context.directory;
        let shards = match &volatile.audience {
            Audience::Members => directory.conversation(&volatile.conversation),
            Audience::Users(users) => {
                let mut shards = ShardSet::default();
                users.iter().for_each(|user| shards.extend(directory.user(user)));
                shards
            }
            Audience::Sessions(sessions) => {
                let mut shards = ShardSet::default();
                sessions.iter().for_each(|it| shards.extend(directory.user(&it.user)));
                shards
            }
        };
        for shard in shards.iter() {
            if shard == self.context.index {
                self.take_signal(volatile.clone());
            } else if let Some(handle) = self.context.shards().get(shard)
                && !handle.try_post(Mail::Signal(volatile.clone()))
            {
                self.context.metrics.signals_dropped.increment(1);
            }
        }
    }

    /// Keeps a signal until the end of the turn, if there is room.
    pub(super) fn take_signal(&mut self, volatile: Volatile) {
        if self.signals.len() < WAITING_MAX {
            self.signals.push_back(volatile);
        } else {
            self.context.metrics.signals_dropped.increment(1);
        }
    }

    /// Writes the signals that wait, unless messages do.
    pub(super) fn tell_signals(&mut self) {
        let mut left = BUDGET;
        while left > 0 && !self.hub.has_work() {
            let Some(signal) = self.signals.pop_front() else { return };
            let slots: Vec<u32> = match &signal.audience {
                Audience::Members => self.hub.members_of(&signal.conversation),
                Audience::Users(users) => {
                    users.iter().flat_map(|user| self.hub.slots(user)).copied().collect()
                }
                Audience::Sessions(sessions) => self.slots_of_sessions(sessions),
            };
            left = left.saturating_sub(slots.len().max(1));
            let here = signal.origin.filter(|key| usize::from(key.shard) == self.context.index);
            let origin = here.and_then(|key| self.conns.find(key));
            for slot in slots {
                if Some(slot) != origin && self.is_for(slot, signal.only.as_deref()) {
                    self.tell_signal(slot, &signal.frame);
                }
            }
        }
    }

    /// Whether the connection is one of a user who is named, where users are.
    fn is_for(&self, slot: u32, only: Option<&HashSet<UserId>>) -> bool {
        let who = self.conns.peek(slot).and_then(|conn| conn.who.as_ref());
        only.is_none_or(|users| who.is_some_and(|who| users.contains(&who.route.user)))
    }

    fn tell_signal(&mut self, slot: u32, frame: &PushFrame) {
        let hot = &self.conns.hot[slot as usize];
        let idle = hot.flags & (LIVE | WAITING | DIRTY) == LIVE;
        let Some(stream) = hot.stream.as_ref().filter(|_| idle) else {
            return self.context.metrics.signals_dropped.increment(1);
        };
        let bytes = frame.bytes(hot.wire);
        match transfer::write(stream, bytes) {
            Ok(taken) if taken == bytes.len() => self.context.metrics.signals.increment(1),
            // What was begun has to be ended.
            Ok(taken) if taken > 0 => {
                self.context.metrics.signals.increment(1);
                self.with_conn(slot, |shard, conn| {
                    conn.outbox.get_or_insert_with(Box::default).push_rest(bytes.clone(), taken);
                    conn.blocked_since = conn.blocked_since.or(Some(shard.now));
                    shard.conns.hot[slot as usize].flags |= WAITING;
                });
            }
            Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                self.with_conn(slot, Self::peer_gone);
            }
            Ok(_) | Err(_) => self.context.metrics.signals_dropped.increment(1),
        }
    }
}

/// Whether the group takes signals, and takes one of this connection.
fn allowed(conn: &Conn, size: &Size) -> Result<(), (Code, &'static str)> {
    let is_member =
        |users: &HashSet<UserId>| conn.who.as_ref().is_some_and(|who| users.contains(&who.route.user));
    match &size.members {
        _ if !size.small => Err(TOO_LARGE),
        Some(users) if !is_member(users) => Err((Code::NotAMember, "")),
        _ => Ok(()),
    }
}
