//! Connections of the shard, as the admin API lists and closes them.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{Code, code::Reconnect, id::UserId};

use crate::{
    link::{AckQuery, CloseOrder, ConnectionPage, ConnectionQuery, ConnectionRow, DeviceAck, Selected},
    mail::{ConnKey, ConnectionOrder},
    net::io::Io,
    networks::Network,
    revocation::{Revocation, UsedToken},
    shard::{
        Shard,
        conn::{Conn, LoginState, class_of},
    },
};

/// Most slots that are read for one mail.
const SLOTS_PER_MAIL: u32 = 4_096;

impl<I: Io> Shard<I> {
    /// Carries out an order of the admin API. Its caller may have stopped waiting for the reply.
    pub(in crate::shard) fn on_connections(&mut self, order: ConnectionOrder) {
        match order {
            ConnectionOrder::List(query, from, reply) => {
                drop(reply.send(self.list_connections(&query, from)))
            }
            ConnectionOrder::Rooms(query, reply) => drop(reply.send(self.list_rooms(&query))),
            ConnectionOrder::Acks(queries, reply) => {
                drop(reply.send(queries.iter().map(|query| self.acks_of(query)).collect()))
            }
            ConnectionOrder::Close(order, reply) => drop(reply.send(self.close_selected(&order))),
            ConnectionOrder::RemoveFromRoom(it, reply) => drop(reply.send(self.remove_from_room(&it))),
            ConnectionOrder::Revoke(revocation, reply) => drop(reply.send(self.close_revoked(&revocation))),
            ConnectionOrder::UsersOf(network, from, reply) => drop(reply.send(self.users_of(&network, from))),
        }
    }

    fn list_connections(&self, query: &ConnectionQuery, from: u32) -> (ConnectionPage, Option<u32>) {
        let end = u32::try_from(self.conns.hot.len()).unwrap_or(u32::MAX);
        let (slots, next) = match &query.selected {
            Selected::All => {
                let to = from.saturating_add(SLOTS_PER_MAIL).min(end);
                ((from..to).collect(), (to < end).then_some(to))
            }
            selected => (self.selected(selected), None),
        };
        let mut rows: Vec<ConnectionRow> = slots.iter().filter_map(|slot| self.row(*slot)).collect();
        let total = rows.len() as u64;
        query.sort.cut(&mut rows, query.limit);
        (ConnectionPage { rows, total }, next)
    }

    fn users_of(&self, network: &Network, from: u32) -> (Vec<UserId>, Option<u32>) {
        let end = u32::try_from(self.conns.hot.len()).unwrap_or(u32::MAX);
        let to = from.saturating_add(SLOTS_PER_MAIL).min(end);
        let conns = (from..to).filter_map(|slot| self.conns.peek(slot));
        let open = conns.filter(|conn| conn.is_open() && network.contains(conn.address));
        let users = open.filter_map(|conn| conn.login.as_deref()).map(|login| login.route.user.clone());
        (users.collect(), (to < end).then_some(to))
    }

    fn acks_of(&self, query: &AckQuery) -> Vec<DeviceAck> {
        let logins = self.slots_of(&query.user, |_| true);
        let logins = logins.iter().filter_map(|slot| self.conns.peek(*slot)?.login.as_deref());
        let ack = |login: &LoginState| DeviceAck {
            device: login.route.device.clone(),
            has_acked: login.acks.as_deref().is_some_and(|acks| acks.has(&query.conversation, query.seq)),
        };
        logins.map(ack).collect()
    }

    fn row(&self, slot: u32) -> Option<ConnectionRow> {
        let conn = self.conns.peek(slot).filter(|conn| conn.is_open())?;
        let login = conn.login.as_deref()?;
        Some(ConnectionRow {
            key: conn.key.pack(),
            user: login.route.user.clone(),
            device: login.route.device.clone(),
            address: conn.address,
            wire: self.conns.hot[slot as usize].wire,
            since_ms: login.since_ms,
            outbox_bytes: conn.outbox.as_ref().map_or(0, |outbox| outbox.bytes() as u64),
            unacked: conn.window.as_ref().map_or(0, |window| window.len() as u64),
            expires_ms: login.term.expires_ms,
            class: class_of(self.conns.hot[slot as usize].flags),
            held: conn.session.held() as u64,
            blocked_ms: conn
                .session
                .blocked_since()
                .map_or(0, |since| self.now.since(since).as_millis() as u64),
        })
    }

    /// Returns the open connections that are selected by user or key; none of them if all are.
    fn selected(&self, selected: &Selected) -> Vec<u32> {
        match selected {
            Selected::All => Vec::new(),
            Selected::User(user, device) => self.slots_of_device(user, device.as_ref()),
            Selected::Key(key) => {
                let key = ConnKey::unpack(*key);
                let is_here = usize::from(key.shard) == self.context.index;
                self.conns.find(key).filter(|slot| is_here && self.row(*slot).is_some()).into_iter().collect()
            }
        }
    }

    fn close_selected(&mut self, order: &CloseOrder) -> u64 {
        let slots = self.selected(&order.selected);
        for slot in &slots {
            let reconnect = order
                .reconnect_after
                .map_or((Reconnect::Never, Duration::ZERO), |wait| (Reconnect::After, wait));
            self.with_conn(*slot, |shard, conn| {
                shard.buffers.reconnect = Some(reconnect);
                conn.session.close(Code::Kicked, order.reason.clone(), &mut shard.buffers.actions);
                shard.act(conn);
                shard.buffers.reconnect = None;
                shard.flush(conn);
            });
        }
        self.context.metrics.kicks.increment(slots.len() as u64);
        slots.len() as u64
    }

    fn close_revoked(&mut self, revocation: &Arc<Revocation>) -> u64 {
        let slots = self.slots_of(&revocation.user, |login| revocation.names(&used(login)));
        for slot in &slots {
            self.close_now(*slot, Code::TokenRevoked);
        }
        self.context.metrics.revoked_closes.increment(slots.len() as u64);
        slots.len() as u64
    }

    /// Closes a connection that has just been indexed, if its token was revoked during its login: the order to close
    /// it may have come before.
    pub(in crate::shard) fn close_if_revoked(&mut self, conn: &mut Conn) {
        let Some(login) = conn.login.as_deref() else { return };
        if self.context.cluster.revocations.names(&used(login)) {
            self.context.metrics.tokens_revoked.increment(1);
            self.context.metrics.login_refusals.increment(1);
            conn.session.login_refused(Code::TokenRevoked, "", &mut self.buffers.actions);
            self.act(conn);
        }
    }
}

fn used(login: &LoginState) -> UsedToken<'_> {
    UsedToken {
        user: &login.route.user,
        device: Some(&login.route.device),
        term: login.term,
        grants: login.grants.as_deref(),
    }
}
